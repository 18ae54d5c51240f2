"""Writes grafana-dashboard.json: `python deploy/monitoring/make_dashboard.py`. A test holds the file against this."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("grafana-dashboard.json")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# (title, unit, [(query, legend)])
Row = tuple[str, str, list[tuple[str, str]]]


def _quantiles(metric: str) -> list[tuple[str, str]]:
    rate = f'sum by (le) (rate({metric}_bucket{{instance=~"$instance"}}[$__rate_interval]))'
    return [(f"histogram_quantile({share / 100}, {rate})", f"p{share}") for share in (50, 95, 99)]


def _rate(metric: str, by: str, legend: str) -> list[tuple[str, str]]:
    return [(f'sum by ({by}) (rate({metric}{{instance=~"$instance"}}[$__rate_interval]))', legend)]


def _ratio(above: str, below: str, legend: str) -> list[tuple[str, str]]:
    parts = (f'rate({name}{{instance=~"$instance"}}[$__rate_interval])' for name in (above, below))
    return [(" / ".join(parts), legend)]


def _now(metric: str, legend: str) -> tuple[str, str]:
    return f'{metric}{{instance=~"$instance"}}', legend


STATS: list[Row] = [
    ("Ready", "none", [_now("cosyvoice_ready", "ready")]),
    ("Being served", "none", [_now("cosyvoice_live_requests", "live")]),
    ("Waiting", "none", [_now("cosyvoice_queue_length", "waiting")]),
    ("Sound made per second", "s", _rate("cosyvoice_audio_seconds_total", "instance", "sound")),
]
GRAPHS: list[Row] = [
    ("First sound", "s", _quantiles("cosyvoice_first_chunk_seconds")),
    ("Whole request", "s", _quantiles("cosyvoice_request_seconds")),
    ("Wait for a place", "s", _quantiles("cosyvoice_queue_wait_seconds")),
    ("Real-time factor", "none", _quantiles("cosyvoice_real_time_factor")),
    ("Requests by outcome", "reqps", _rate("cosyvoice_requests_total", "outcome", "{{outcome}}")),
    (
        "Requests by front and mode",
        "reqps",
        _rate("cosyvoice_requests_total", "front, mode", "{{front}} {{mode}}"),
    ),
    ("Errors by kind", "ops", _rate("cosyvoice_errors_total", "code", "{{code}}")),
    ("API answers by status", "reqps", _rate("cosyvoice_http_requests_total", "status", "{{status}}")),
    (
        "Queue",
        "none",
        [_now("cosyvoice_queue_length", "waiting"), _now("cosyvoice_queue_limit", "limit")]
        + _rate("cosyvoice_pool_refused_total", "instance", "refused per second"),
    ),
    ("Characters", "ops", _rate("cosyvoice_characters_total", "front", "{{front}}")),
    (
        "Slots of the language model",
        "none",
        [
            _now("cosyvoice_worker_slots_used", "{{worker}} used"),
            _now("cosyvoice_worker_slots", "{{worker}} all"),
            _now("cosyvoice_worker_segments_waiting", "{{worker}} waiting"),
        ],
    ),
    (
        "Mean batch",
        "none",
        _ratio(
            "cosyvoice_worker_decode_rows_total", "cosyvoice_worker_decode_steps_total", "{{worker}} language"
        )
        + _ratio(
            "cosyvoice_worker_wave_items_total", "cosyvoice_worker_wave_batches_total", "{{worker}} sound"
        ),
    ),
    (
        "Busy share of the lanes",
        "percentunit",
        [
            _now("cosyvoice_worker_speech_busy_ratio", "{{worker}} language"),
            _now("cosyvoice_worker_wave_busy_ratio", "{{worker}} sound"),
        ],
    ),
    (
        "Voice cache",
        "ops",
        _rate("cosyvoice_worker_voice_cache_hits_total", "worker", "{{worker}} hits")
        + _rate("cosyvoice_worker_voice_cache_misses_total", "worker", "{{worker}} misses"),
    ),
    (
        "Workers",
        "none",
        [
            _now("cosyvoice_worker_up", "{{worker}} up"),
            _now("cosyvoice_worker_restarts_total", "{{worker}} restarts"),
            _now("cosyvoice_worker_backend_failures_total", "{{worker}} backends given up"),
            _now("cosyvoice_worker_stalled_seconds", "{{worker}} stalled, s"),
            _now("cosyvoice_worker_backend_failures_total", "{{worker}} backends given up"),
        ],
    ),
    (
        "Memory",
        "bytes",
        [
            _now("cosyvoice_worker_memory_bytes", "{{worker}} process"),
            _now("cosyvoice_worker_device_memory_bytes", "{{worker}} device"),
            _now("cosyvoice_worker_lane_memory_bytes", "{{worker}} lanes"),
            _now("process_resident_memory_bytes", "web process"),
        ],
    ),
    ("GPU utilisation", "percentunit", [_now("cosyvoice_gpu_utilisation_ratio", "{{gpu}} {{name}}")]),
    (
        "GPU memory",
        "bytes",
        [
            _now("cosyvoice_gpu_memory_used_bytes", "{{gpu}} used"),
            _now("cosyvoice_gpu_memory_bytes", "{{gpu}} all"),
        ],
    ),
    ("GPU power", "watt", [_now("cosyvoice_gpu_power_watts", "{{gpu}} {{name}}")]),
    ("GPU temperature", "celsius", [_now("cosyvoice_gpu_temperature_celsius", "{{gpu}} {{name}}")]),
]
TABLE: Row = ("Backends", "none", [_now("cosyvoice_worker_backend_info", "")])


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels = [_panel(row, "stat", 6 * place, 0, 6, 4) for place, row in enumerate(STATS)]
    for place, row in enumerate(GRAPHS):
        panels.append(_panel(row, "timeseries", 12 * (place % 2), 4 + 8 * (place // 2), 12, 8))
    table = _panel(TABLE, "table", 0, 4 + 8 * ((len(GRAPHS) + 1) // 2), 24, 8)
    table["targets"][0] |= {"instant": True, "format": "table"}
    panels.append(table)
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    return {
        "title": "CosyVoice Studio",
        "uid": "cosyvoice-studio",
        "tags": ["cosyvoice", "tts"],
        "timezone": "browser",
        "schemaVersion": 39,
        "version": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                {
                    "name": "instance",
                    "type": "query",
                    "label": "Studio",
                    "datasource": SOURCE,
                    "query": "label_values(cosyvoice_ready, instance)",
                    "includeAll": True,
                    "multi": True,
                    "current": {"text": "All", "value": "$__all"},
                    "refresh": 2,
                },
            ]
        },
        "panels": panels,
    }


def _panel(row: Row, kind: str, x: int, y: int, width: int, height: int) -> dict[str, Any]:
    title, unit, queries = row
    return {
        "type": kind,
        "title": title,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": width, "h": height},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for place, (query, legend) in enumerate(queries)
        ],
    }


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
