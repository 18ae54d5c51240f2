"""The words of the tab of voices and of Gradio's own messages, in Chinese and English."""

from __future__ import annotations

Table = dict[str, dict[str, str]]

# In the place of Gradio's own messages, which are in English; by what those are about (see page.js).
TOASTS: Table = {
    "toast_title": {"zh": "提示", "en": "Note"},
    "toast_file": {
        "zh": "这里不能用这种文件；请选一个声音或视频文件。",
        "en": "This kind of file cannot be used here; choose a sound or a video.",
    },
    "toast_table": {
        "zh": "这里不能用这种文件；批量文件应为 .txt、.csv、.tsv、.jsonl 或 .srt。",
        "en": "This kind of file cannot be used here; a batch is a .txt, .csv, .tsv, .jsonl or .srt file.",
    },
    "toast_voice": {
        "zh": "这里不能用这种文件；请选一个导出的声音文件（.safetensors）。",
        "en": "This kind of file cannot be used here; choose an exported voice (.safetensors).",
    },
    "toast_size": {
        "zh": "文件太大；请换一个小一些的。",
        "en": "The file is too large; choose a smaller one.",
    },
    "toast_connection": {
        "zh": "与工作室的连接断了，正在重新连接；若没有恢复，请刷新页面。",
        "en": "The studio cannot be reached; if it does not come back, open the page again.",
    },
    "toast_other": {
        "zh": "出了点问题，没有完成；请再试一次，若仍失败请刷新页面。",
        "en": "That did not work; try again, and open the page again if it persists.",
    },
}

VOICES: Table = {
    "tab_voices": {"zh": "声音库", "en": "Voices"},
    "about_voices": {
        "zh": "把常用的声音存下来，三个合成页、批量合成和接口都能用。",
        "en": "Keep the voices you use often; the three synthesis tabs, Batch and the API can speak with them.",
    },
    "about_voices_locked": {
        "zh": "存在这里的声音，三个合成页、批量合成和接口都能用。",
        "en": "The three synthesis tabs, Batch and the API can speak with the voices that are kept here.",
    },
    "voices_mine": {"zh": "已保存的声音", "en": "Saved voices"},
    "voices_none": {
        "zh": "还没有保存的声音。添加一段录音，或导入一个声音文件。",
        "en": "There are no saved voices yet. Add one from a clip, or import a voice file.",
    },
    "voices_none_locked": {
        "zh": "这里没有保存的声音；声音库已锁定，不能添加。",
        "en": "There are no saved voices here, and none can be added.",
    },
    "voices_add_heading": {"zh": "### 添加声音", "en": "### Add a voice"},
    "voice_facts": {
        "zh": "{seconds:.1f} 秒 · {rate:g} kHz · 保存于 {day}",
        "en": "{seconds:.1f} s · {rate:g} kHz · saved {day}",
    },
    "voice_listen": {"zh": "试听", "en": "Listen"},
    "voice_rename": {"zh": "保存修改", "en": "Save changes"},
    "voice_renamed": {"zh": "已保存「{name}」的修改。", "en": "The changes to “{name}” are saved."},
    "voice_delete": {"zh": "删除", "en": "Delete"},
    "voice_delete_sure": {"zh": "确认删除", "en": "Yes, delete it"},
    "voice_delete_not": {"zh": "保留", "en": "Keep it"},
    "voice_deleted": {"zh": "已删除「{name}」。", "en": "“{name}” is deleted."},
    "voice_export": {"zh": "导出", "en": "Export"},
    "voice_import": {"zh": "导入声音文件", "en": "Import a voice file"},
    "voice_imported": {"zh": "已导入「{name}」。", "en": "“{name}” is imported."},
    "voices_locked_note": {
        "zh": "这里的声音可以使用，但不能修改或导出。",
        "en": "The voices here can be used, but not changed or exported.",
    },
    "voice_consent": {
        "zh": "请只保存本人同意使用的声音。",
        "en": "Save only voices whose owners agree to it.",
    },
}
