"""Texts and instructions to try, by what they are called on the page."""

from __future__ import annotations

from pathlib import Path

# A voice of nobody's: spoken by `assets/nano` itself. Its words are in the file beside it.
VOICE = Path(__file__).resolve().parents[2] / "assets" / "examples" / "studio_voice.flac"

EXAMPLES: dict[str, str] = {
    "中文": "收到好友从远方寄来的生日礼物，那份意外的惊喜与深深的祝福，让我心中充满了甜蜜的快乐。",
    "English": "The train to the coast leaves at half past nine, so let's have breakfast on the way.",
    "日本語": "今日はとてもいい天気ですね。公園まで一緒に散歩しませんか。",
    "한국어": "오늘은 날씨가 참 좋네요. 공원까지 같이 걸어갈까요?",
    "中 + EN": "这个周末我们去 hiking 吧，[breath] 顺便在山顶喝一杯 coffee。",
}


def example_text(key: str, language: str) -> str:
    """The example of that name, or without one that of a reader's language."""
    return EXAMPLES[key or {"zh": "中文", "en": "English"}[language]]


def example_transcript() -> str:
    """What the example voice says."""
    return VOICE.with_suffix(".txt").read_text(encoding="utf-8").strip()


# Group (text key) → presets: (text key of the button, the instruction that it writes).
# Those that the model's makers show come first in their group.
PRESETS: dict[str, tuple[tuple[str, str], ...]] = {
    "presets_dialect": (
        ("preset_sichuan", "用四川话说这句话"),
        ("preset_cantonese", "用粤语说这句话"),
        ("preset_shanghai", "用上海话说这句话"),
        ("preset_tianjin", "用天津话说这句话"),
        ("preset_zhengzhou", "用郑州话说这句话"),
        ("preset_changsha", "用长沙话说这句话"),
    ),
    "presets_emotion": (
        ("preset_happy", "用开心的语气说这句话"),
        ("preset_sad", "用伤心的语气说这句话"),
        ("preset_surprised", "用惊讶的语气说这句话"),
        ("preset_angry", "用生气的语气说这句话"),
        ("preset_fearful", "用恐惧的情感表达"),
        ("preset_calm", "用平静的语气说这句话"),
    ),
    "presets_pace": (
        ("preset_slow", "用慢速说这句话"),
        ("preset_very_slow", "用非常慢的语速说这句话"),
        ("preset_fast", "用快速说这句话"),
        ("preset_very_fast", "用非常快的语速说这句话"),
    ),
    "presets_role": (
        ("preset_mystery", "用神秘的语气说这句话"),
        ("preset_curious", "用好奇的语气说这句话"),
        ("preset_elegant", "用优雅的语气说这句话"),
        ("preset_fierce", "用凶猛的语气说这句话"),
        ("preset_robot", "模仿机器人的风格说这句话"),
        ("preset_cartoon", "模仿小猪佩奇的语气说话"),
    ),
}
