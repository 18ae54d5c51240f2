"""Mixed users for locust: are there errors, is every sound valid and its caller's own, is memory flat.

    ./run.sh --model-dir assets/nano --visitor-rate 0 &
    pip install locust websocket-client        # in an environment of its own
    locust -f benchmarks/locustfile.py --headless -u 50 -r 5 -t 3m -H http://127.0.0.1:7860

Ends with status 1 after any failure. 429 and 503 are none, if they say when to come again; the user then waits so long.
Who speaks is known by the seed and the text: the first answer to each is what all later ones must be.
"""

from __future__ import annotations

import json
import random
import struct
import threading
import time
import wave
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import Any

from locust import HttpUser, between, events, task

CLIP = Path(__file__).resolve().parents[2] / "shared" / "reference" / "audio" / "zero_shot_prompt.wav"
TEXTS = ("Hello there.", "This is a test.", "Good morning to you all.")
SEEDS = 4
_first: dict[tuple[Any, ...], bytes] = {}
_lock = threading.Lock()
_voice_is_there = threading.Event()
_memory: list[tuple[float, float]] = []  # bytes of the web process (the page's too) and of the workers
_counts: Counter[str] = Counter()


@events.test_start.add_listener
def _save_a_voice(environment: Any, **_: Any) -> None:
    import requests

    files = {"reference": CLIP.read_bytes()} if CLIP.is_file() else {"reference": _hum()}
    found = requests.post(f"{environment.host}/v1/voices", files=files, data={"name": "locust"}, timeout=60)
    if found.status_code not in (201, 409):
        raise SystemExit(f"no voice could be saved: {found.text}")
    _voice_is_there.set()


@events.test_stop.add_listener
def _tell(environment: Any, **_: Any) -> None:
    sixth = len(_memory) // 6
    if sixth:
        parts = [_memory[sixth * place : sixth * (place + 1)] for place in range(6)]
        for place, name in enumerate(("web process", "workers")):
            means = [sum(pair[place] for pair in part) / len(part) / 2**20 for part in parts]
            shown = " → ".join(f"{mean:.0f}" for mean in means)
            print(f"memory of {name}, MB, mean of each sixth of the time: {shown}")
    print(f"{_counts['turned away']} times told to come again; {len(_first)} different sounds;")
    print(f"{_counts['same']} answers held against the first of their kind")
    environment.process_exit_code = 1 if environment.stats.total.num_failures else 0


class Caller(HttpUser):
    """Somebody who asks, hears, and asks again."""

    wait_time = between(0.2, 2.0)

    def on_start(self) -> None:
        _voice_is_there.wait(60)

    @task(5)
    def whole(self) -> None:
        """OpenAI's route, read to its end."""
        text, seed = random.choice(TEXTS), random.randrange(SEEDS)
        body = {"input": text, "voice": "locust", "seed": seed, "response_format": "wav"}
        self._speak("/v1/audio/speech", body, ("speech", text, seed))

    @task(2)
    def other_ways(self) -> None:
        """Our own routes."""
        text, seed = random.choice(TEXTS), random.randrange(SEEDS)
        path = random.choice(("/v1/clone", "/v1/cross-lingual", "/v1/instruct"))
        body = {"text": text, "voice": "locust", "seed": seed}
        if path == "/v1/instruct":
            body["instruction"] = "speak slowly"
        self._speak(path, body, (path, text, seed))

    @task(2)
    def talk(self) -> None:
        """The WebSocket, with a text written word by word."""
        from websocket import create_connection

        text, seed = random.choice(TEXTS), random.randrange(SEEDS)
        began, error, sound = time.time(), None, b""
        try:
            socket = create_connection(f"{self.host.replace('http', 'ws', 1)}/v1/stream", timeout=120)
            socket.send(json.dumps({"type": "start", "voice": "locust", "seed": seed}))
            for word in text.split():
                socket.send(json.dumps({"type": "text", "text": word + " "}))
            socket.send(json.dumps({"type": "end"}))
            sound = self._listen(socket)
            socket.close()
            if sound:
                self._compare(("talk", text, seed), sound)
        except Exception as caught:
            error = caught
        events.request.fire(
            request_type="WS",
            name="/v1/stream",
            response_time=1000 * (time.time() - began),
            response_length=len(sound),
            exception=error,
            context={},
        )

    def _listen(self, socket: Any) -> bytes:
        """A turn's sound; a piece for which there is no place is tried again."""
        sound = b""
        while True:
            message = socket.recv()
            if isinstance(message, bytes):
                sound += message
                continue
            told = json.loads(message)
            if told["type"] == "done":
                return sound
            if told["type"] == "error":
                if not told["resumable"] or "retry_after" not in told:
                    raise ValueError(message)
                with _lock:
                    _counts["turned away"] += 1
                time.sleep(min(5.0, told["retry_after"]))
                socket.send(json.dumps({"type": "resume"}))

    @task(1)
    def page(self) -> None:
        """Opens the page, in the same process."""
        self.client.get("/", name="page")

    @task(2)
    def leave(self) -> None:
        """Closes the connection after the first bytes."""
        body = {"input": random.choice(TEXTS), "voice": "locust", "response_format": "pcm"}
        with self.client.post(
            "/v1/audio/speech", json=body, stream=True, catch_response=True, name="leave"
        ) as answer:
            if not self._turned_away(answer):
                next(answer.iter_content(1024), b"")
                answer.close()
                answer.success()

    @task(1)
    def wrong(self) -> None:
        """What cannot be served is a 4xx."""
        body = {"input": "!!!", "voice": "locust"}
        with self.client.post("/v1/audio/speech", json=body, catch_response=True, name="wrong") as answer:
            if answer.status_code == 400:
                answer.success()
            else:
                self._turned_away(answer) or answer.failure(f"status {answer.status_code}")

    @task(1)
    def look(self) -> None:
        """As a probe does."""
        self.client.get("/ready")
        lines = self.client.get("/metrics").text.splitlines()
        names = ("process_resident_memory_bytes", "cosyvoice_worker_memory_bytes")
        web, workers = (
            sum(float(line.split()[-1]) for line in lines if line.startswith(name)) for name in names
        )
        _memory.append((web, workers))

    def _speak(self, path: str, body: dict[str, Any], key: tuple[Any, ...]) -> None:
        with self.client.post(path, json=body, catch_response=True) as answer:
            if self._turned_away(answer):
                return
            if answer.status_code != 200:
                answer.failure(f"status {answer.status_code}: {answer.text[:200]}")
                return
            with wave.open(BytesIO(answer.content)) as file:
                sound = file.readframes(10**9)
            try:
                self._compare(key, sound)
                answer.success()
            except ValueError as error:
                answer.failure(str(error))

    @staticmethod
    def _compare(key: tuple[Any, ...], sound: bytes) -> None:
        """Raises ValueError for what is not the sound that `key` had before."""
        with _lock:
            first = _first.setdefault(key, sound)
            _counts["same"] += first is not sound
        if len(sound) < 4800:
            raise ValueError("hardly any sound")
        if sound != first:
            raise ValueError(f"not the sound of {key}")

    def _turned_away(self, answer: Any) -> bool:
        if answer.status_code not in (429, 503):
            return False
        again = answer.headers.get("Retry-After")
        if again is None:
            answer.failure("turned away without Retry-After")
            return True
        answer.success()
        with _lock:
            _counts["turned away"] += 1
        time.sleep(min(5.0, float(again)))
        return True


def _hum() -> bytes:
    """Four seconds of a buzz with pauses, where no recording is at hand."""
    samples = b"".join(
        struct.pack("<h", 0 if number % 16000 > 12000 else (number % 107 - 53) * 150)
        for number in range(64000)
    )
    file = BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16000)
        sound.writeframes(samples)
    return file.getvalue()
