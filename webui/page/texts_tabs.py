"""The words of the page's own tabs, in Chinese and English."""

from __future__ import annotations

from webui.page.texts_voices import TOASTS, VOICES, Table

PAGE: Table = {
    "title": {"zh": "CosyVoice2 声音克隆工作室", "en": "CosyVoice2 Voice Studio"},
    "tagline": {
        "zh": "上传或录制几秒声音，输入文字，就能听到这个声音把它说出来。",
        "en": "Upload or record a few seconds of a voice, type a text, and hear that voice say it.",
    },
    "language_label": {"zh": "界面语言", "en": "Language of the page"},
    "colours": {"zh": "◐ 明暗", "en": "◐ Theme"},
    "tab_clone": {"zh": "3s极速复刻", "en": "3s Clone"},
    "tab_cross_lingual": {"zh": "跨语种复刻", "en": "Cross-lingual"},
    "tab_instruct": {"zh": "自然语言控制", "en": "Instruct"},
    "about_clone": {
        "zh": "参考音频和它的文字一起使用，声音最像。文字可以留空，这时只用音频，按跨语种方式合成。",
        "en": "The clip and its transcript are used together, for the closest voice. "
        "Leave the transcript empty and the clip alone is used, as in Cross-lingual.",
    },
    "about_cross_lingual": {
        "zh": "只需参考音频：让这个声音说另一种语言。",
        "en": "The clip alone is enough: let this voice speak another language.",
    },
    "about_instruct": {
        "zh": "用一句话描述怎么说，例如方言、情绪、语速。指令本身不会被念出来。",
        "en": "Say in a sentence how it should sound: dialect, mood, pace. The instruction itself is not spoken.",
    },
    "notice_bundled": {
        "zh": "当前使用自带的小模型，音质有限；完整音质请先运行 `./run.sh download`。",
        "en": "This is the small bundled model, whose voices are rough; for the full quality run "
        "`./run.sh download` first.",
    },
}

TEXT_PART: Table = {
    "text": {"zh": "要合成的文字", "en": "Text to speak"},
    "text_hint": {
        "zh": "在这里输入文字……（Ctrl + Enter 生成）",
        "en": "Type what the voice should say… (Ctrl + Enter generates)",
    },
    "helper_laughter": {"zh": "＋笑声", "en": "+ Laughter"},
    "helper_breath": {"zh": "＋换气", "en": "+ Breath"},
    "helper_strong": {"zh": "＋重读", "en": "+ Stress"},
    "helper_laughing": {"zh": "＋笑着说", "en": "+ Laughing"},
    "examples": {"zh": "示例", "en": "Examples"},
    "characters": {"zh": "{count} / {limit} 字", "en": "{count} / {limit} characters"},
    "segment_count": {"zh": "分 {count} 段朗读", "en": "spoken in {count} segments"},
    "segment_one": {"zh": "{count} 段读完", "en": "spoken in {count} segment"},
    "segments_hint": {
        "zh": "声音实际读到的内容：数字、日期和单位已经写成读法。",
        "en": "What the voice is given to say: numbers, dates and units are written out.",
    },
}

REFERENCE: Table = {
    "voice": {"zh": "声音", "en": "Voice"},
    "voice_new": {"zh": "用一段新的录音", "en": "A new clip"},
    "reference": {"zh": "参考音频（3–10 秒）", "en": "Reference clip (3–10 s)"},
    "from_video": {"zh": "从视频取声音", "en": "From a video"},
    "example_voice": {"zh": "试用示例声音", "en": "Try an example voice"},
    "transcribe": {"zh": "自动识别文字", "en": "Transcribe the clip"},
    "nothing_to_transcribe": {"zh": "请先上传或录制一段参考音频。", "en": "Upload or record a clip first."},
    "transcript": {"zh": "参考音频的文字（可留空）", "en": "What the clip says (may be empty)"},
    "transcript_hint": {
        "zh": "参考音频里逐字说了什么",
        "en": "Word for word what is said in the clip",
    },
    "heard": {"zh": "实际使用的声音", "en": "What is used of it"},
    "quality_good": {"zh": "很好", "en": "Good"},
    "quality_fair": {"zh": "可用", "en": "Usable"},
    "quality_poor": {"zh": "建议重录", "en": "Better record again"},
    "usable": {"zh": "可用 {seconds:.1f} 秒", "en": "{seconds:.1f} s usable"},
    "used_part": {
        "zh": "使用第 {start:.1f}–{end:.1f} 秒（共 {duration:.1f} 秒），可在下面试听。",
        "en": "Seconds {start:.1f} to {end:.1f} of {duration:.1f} are used; listen to them below.",
    },
    "level_good": {"zh": "音量合适", "en": "good level"},
    "level_quiet": {"zh": "音量偏小", "en": "quiet"},
    "noise_good": {"zh": "背景安静", "en": "clean background"},
    "noise_some": {"zh": "略有噪声", "en": "some noise"},
    "noise_bad": {"zh": "噪声大", "en": "noisy"},
    "clipping_good": {"zh": "无爆音", "en": "no clipping"},
    "clipping_bad": {"zh": "有爆音", "en": "clipped"},
    "rate_low": {"zh": "采样率低", "en": "low sample rate"},
    "without_transcript": {
        "zh": "没有参考文字：只用音频，按跨语种方式合成。",
        "en": "No transcript: the clip alone is used, as in Cross-lingual.",
    },
    "spoken_without_transcript": {
        "zh": "没有参考文字，已按跨语种方式合成。",
        "en": "Spoken as in Cross-lingual, as there is no transcript.",
    },
    "doubtful": {
        "zh": "参考文字的长度和录音不符，请核对。",
        "en": "The transcript does not fit the clip's length; please check it.",
    },
    "saved_facts": {"zh": "「{name}」· {seconds:.1f} 秒。", "en": "“{name}”, {seconds:.1f} s."},
    "saved_says": {"zh": "文字：{transcript}", "en": "It says: {transcript}"},
    "save_voice": {"zh": "把这个声音存起来", "en": "Save this voice"},
    "voice_name": {"zh": "名称", "en": "Name"},
    "voice_name_hint": {"zh": "例如：小安", "en": "For example: Anna"},
    "save": {"zh": "保存", "en": "Save"},
    "voice_saved": {
        "zh": "已保存「{name}」，现在可以在“声音”里选它。",
        "en": "“{name}” is saved; choose it under “Voice”.",
    },
}

INSTRUCTION: Table = {
    "instruction": {"zh": "指令", "en": "Instruction"},
    "instruction_hint": {"zh": "例如：用四川话说这句话", "en": "For example: speak slowly and gently"},
    "presets_dialect": {"zh": "方言", "en": "Dialect"},
    "presets_emotion": {"zh": "情绪", "en": "Emotion"},
    "presets_pace": {"zh": "语速", "en": "Pace"},
    "presets_role": {"zh": "角色", "en": "Role"},
    "preset_sichuan": {"zh": "四川话", "en": "Sichuan"},
    "preset_cantonese": {"zh": "粤语", "en": "Cantonese"},
    "preset_shanghai": {"zh": "上海话", "en": "Shanghai"},
    "preset_tianjin": {"zh": "天津话", "en": "Tianjin"},
    "preset_zhengzhou": {"zh": "郑州话", "en": "Zhengzhou"},
    "preset_changsha": {"zh": "长沙话", "en": "Changsha"},
    "preset_happy": {"zh": "开心", "en": "Happy"},
    "preset_sad": {"zh": "伤心", "en": "Sad"},
    "preset_surprised": {"zh": "惊讶", "en": "Surprised"},
    "preset_angry": {"zh": "生气", "en": "Angry"},
    "preset_fearful": {"zh": "恐惧", "en": "Fearful"},
    "preset_calm": {"zh": "平静", "en": "Calm"},
    "preset_slow": {"zh": "慢", "en": "Slow"},
    "preset_very_slow": {"zh": "很慢", "en": "Very slow"},
    "preset_fast": {"zh": "快", "en": "Fast"},
    "preset_very_fast": {"zh": "很快", "en": "Very fast"},
    "preset_mystery": {"zh": "神秘", "en": "Mysterious"},
    "preset_curious": {"zh": "好奇", "en": "Curious"},
    "preset_elegant": {"zh": "优雅", "en": "Elegant"},
    "preset_fierce": {"zh": "凶猛", "en": "Fierce"},
    "preset_robot": {"zh": "机器人", "en": "Robot"},
    "preset_cartoon": {"zh": "小猪佩奇", "en": "Peppa Pig"},
}

SETTINGS: Table = {
    "speed": {"zh": "语速", "en": "Speed"},
    "seed": {"zh": "随机种子", "en": "Seed"},
    "dice": {"zh": "换一个", "en": "New seed"},
    "keep_seed": {"zh": "固定种子（同样的种子，同样的声音）", "en": "Keep the seed (same seed, same sound)"},
    "streaming": {"zh": "边合成边播放", "en": "Play while it is being made"},
    "format": {"zh": "文件格式", "en": "File format"},
}

OUTPUT: Table = {
    "generate": {"zh": "生成音频", "en": "Generate"},
    "stop": {"zh": "停止", "en": "Stop"},
    "stopped": {"zh": "已停止。", "en": "Stopped."},
    "loading": {
        "zh": "模型正在加载，加载完成后立即开始合成……",
        "en": "The model is loading; yours is spoken as soon as it is there…",
    },
    "queued": {"zh": "排队中，您是第 {place} 位……", "en": "Waiting, number {place} in the queue…"},
    "working": {"zh": "正在合成……", "en": "Working…"},
    "made": {"zh": "正在合成……已有 {seconds:.1f} 秒", "en": "Working… {seconds:.1f} s made"},
    "live": {"zh": "实时播放", "en": "Live"},
    "result": {"zh": "结果", "en": "Result"},
    "download": {"zh": "下载", "en": "Download"},
    "facts": {
        "zh": "等待 {wait:.1f} 秒 · 首声 {first:.1f} 秒 · 时长 {duration:.1f} 秒 · 实时率 {rtf:.2f} · 种子 {seed}",
        "en": "Waited {wait:.1f} s · first sound {first:.1f} s · length {duration:.1f} s · RTF {rtf:.2f} · seed {seed}",
    },
    "unexpected": {
        "zh": "出了意外的问题，没有生成声音；请再试一次，若仍失败请查看日志。",
        "en": "Something unexpected went wrong and no sound was made; try again, and see the log if it persists.",
    },
    "unexpected_short": {
        "zh": "出了意外的问题；请再试一次，若仍失败请查看日志。",
        "en": "Something unexpected went wrong; try again, and see the log if it persists.",
    },
}

# What a `ReferenceReport` warns of.
WARNINGS: Table = {
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


TEXTS: Table = {**PAGE, **TEXT_PART, **REFERENCE, **INSTRUCTION, **SETTINGS, **OUTPUT, **TOASTS, **VOICES}
