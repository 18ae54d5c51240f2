"""Every word the page shows, in Chinese and English."""

from __future__ import annotations

from collections.abc import Iterable

from inference.types import SynthesisError
from webui.page.errors_zh import ERRORS_ZH

LANGUAGES = ("zh", "en")

TEXTS: dict[str, dict[str, str]] = {
    "title": {"zh": "CosyVoice2 声音克隆工作室", "en": "CosyVoice2 Voice Studio"},
    "tagline": {
        "zh": "上传或录制三秒声音，输入文字，就能听到这个声音把它说出来。",
        "en": "Upload or record three seconds of a voice, type a text, and hear that voice say it.",
    },
    "tab_clone": {"zh": "3s极速复刻", "en": "3s Clone"},
    "tab_cross_lingual": {"zh": "跨语种复刻", "en": "Cross-lingual"},
    "tab_instruct": {"zh": "自然语言控制", "en": "Instruct"},
    "about_clone": {
        "zh": "参考音频和它的文字一起使用，声音最像。文字可以留空，这时按跨语种方式合成。",
        "en": "The clip and its transcript are used together, for the closest voice. "
        "Leave the transcript empty and the clip alone is used.",
    },
    "about_cross_lingual": {
        "zh": "只需参考音频：让这个声音说另一种语言。",
        "en": "The clip alone is enough: let this voice speak another language.",
    },
    "about_instruct": {
        "zh": "用一句话描述怎么说，例如方言、情绪、语速。指令本身不会被念出来。",
        "en": "Say in a sentence how it should sound: dialect, mood, pace. The instruction itself is not spoken.",
    },
    "text": {"zh": "要合成的文字", "en": "Text to speak"},
    "text_hint": {"zh": "在这里输入文字……", "en": "Type what the voice should say…"},
    "reference": {"zh": "参考音频（3–10 秒）", "en": "Reference clip (3–10 s)"},
    "from_video": {"zh": "从视频文件取声音", "en": "Take the sound of a video file"},
    "transcript": {"zh": "参考音频的文字（可留空）", "en": "What the clip says (may be empty)"},
    "transcript_hint": {
        "zh": "参考音频里逐字说了什么",
        "en": "Word for word what is said in the clip",
    },
    "instruction": {"zh": "指令", "en": "Instruction"},
    "instruction_hint": {"zh": "例如：用四川话说这句话", "en": "For example: speak slowly and gently"},
    "speed": {"zh": "语速", "en": "Speed"},
    "seed": {"zh": "随机种子", "en": "Seed"},
    "dice": {"zh": "换种子", "en": "New seed"},
    "streaming": {"zh": "边合成边播放", "en": "Play while it is being made"},
    "generate": {"zh": "生成", "en": "Generate"},
    "stop": {"zh": "停止", "en": "Stop"},
    "stopped": {"zh": "已停止。", "en": "Stopped."},
    "queued": {"zh": "排队中，您是第 {place} 位……", "en": "Waiting, number {place} in the queue…"},
    "live": {"zh": "实时播放", "en": "Live"},
    "result": {"zh": "结果", "en": "Result"},
    "download": {"zh": "下载", "en": "Download"},
    "notice_bundled": {
        "zh": "当前使用自带的小模型，音质有限；完整音质请先运行 `./run.sh download`。",
        "en": "This is the small bundled model, whose voices are rough; for the full quality run "
        "`./run.sh download` first.",
    },
    "working": {"zh": "正在合成……", "en": "Working…"},
    "facts": {
        "zh": "首声 {first:.1f} 秒 · 时长 {duration:.1f} 秒 · 实时率 {rtf:.2f} · 种子 {seed}",
        "en": "First sound {first:.1f} s · length {duration:.1f} s · RTF {rtf:.2f} · seed {seed}",
    },
    "unexpected": {
        "zh": "出了意外的问题，没有生成声音；请再试一次，若仍失败请查看日志。",
        "en": "Something unexpected went wrong and no sound was made; try again, and see the log if it persists.",
    },
}

# What a `ReferenceReport` warns of.
WARNINGS: dict[str, dict[str, str]] = {
    "long_cut": {
        "zh": "参考音频较长，只用了其中最好的一段",
        "en": "the clip is long, so only its best part was used",
    },
    "transcript_dropped": {
        "zh": "因此没有使用参考文字",
        "en": "its transcript was left out, as it no longer matches",
    },
    "transcript_doubtful": {
        "zh": "参考文字的长度和录音不符，请核对它是不是录音里逐字说的话",
        "en": "the transcript does not fit the clip's length; check that it is what the clip says",
    },
    "long": {"zh": "参考音频偏长，3–10 秒效果最好", "en": "the clip is long; 3–10 s work best"},
    "short": {
        "zh": "参考音频里的人声很短，3–10 秒效果最好",
        "en": "the clip holds little speech; 3–10 s work best",
    },
    "low_rate": {
        "zh": "参考音频采样率低，音质会受影响",
        "en": "the clip has a low sample rate, which costs quality",
    },
    "quiet": {"zh": "参考音频音量很小，已自动放大", "en": "the clip is quiet and was amplified"},
    "noisy": {"zh": "参考音频噪声较大", "en": "the clip is noisy"},
    "clipped": {"zh": "参考音频有爆音（音量过大被削波）", "en": "the clip is distorted (recorded too loud)"},
    "damaged": {
        "zh": "参考音频文件部分损坏，只用了能读出的部分",
        "en": "the file is partly damaged; what could be read was used",
    },
}


def say(key: str, language: str) -> str:
    """The text `key` in `language` ("zh" or "en")."""
    return TEXTS[key][language]


def explain(error: SynthesisError, language: str) -> str:
    """One sentence for the reader about what is wrong and what to do."""
    template = ERRORS_ZH.get(error.code) if language == "zh" else None
    if template is None:
        return error.message
    try:
        return template.format(**error.details)
    except (KeyError, IndexError, ValueError):
        return error.message


def warn(codes: Iterable[str], language: str) -> str:
    """One sentence with all that was found about the reference clip; "" for nothing."""
    found = [WARNINGS[code][language] for code in codes if code in WARNINGS]
    if not found:
        return ""
    if language == "zh":
        return "提示：" + "；".join(found) + "。"
    return "Note: " + "; ".join(found) + "."


def language_of(accept_language: str) -> str:
    """ "zh" when the browser's first supported preference is Chinese, else "en"."""
    for part in accept_language.lower().split(","):
        tag = part.split(";")[0].strip()
        if tag.startswith(("zh", "yue")):
            return "zh"
        if tag.startswith("en"):
            return "en"
    return "en"
