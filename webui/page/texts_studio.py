"""The words of sharing, batches and the history, in Chinese and English; `texts.say` knows them too."""

from __future__ import annotations

TEXTS_STUDIO: dict[str, dict[str, str]] = {
    # Sharing.
    "share_link": {"zh": "公开链接：{url}", "en": "Public link: {url}"},
    "share_opening": {"zh": "正在打开公开链接……", "en": "Opening a public link…"},
    "share_none": {
        "zh": "没有公开链接：{reason}。工作室在本机照常可用。",
        "en": "There is no public link: {reason}. The studio works on its own machine.",
    },
    "share_no_program": {
        "zh": "缺少隧道程序 frpc，也无法下载；它应放在 {path}",
        "en": "the tunnel's program (frpc) is missing and could not be fetched; it belongs at {path}",
    },
    "share_bad_program": {
        "zh": "{path} 的隧道程序与预期不符；请删除后重新启动",
        "en": "the tunnel's program at {path} is not the expected one; remove it and start again",
    },
    "share_no_network": {
        "zh": "连不上 Gradio 的隧道服务；可用环境变量 GRADIO_SHARE_SERVER_ADDRESS 指定自己的服务器",
        "en": "Gradio's tunnel service cannot be reached; an own server can be named in GRADIO_SHARE_SERVER_ADDRESS",
    },
    "share_refused": {"zh": "隧道被拒绝（{reason}）", "en": "the tunnel was refused ({reason})"},
    "share_unguarded": {
        "zh": "任何能访问这个网址的人都可以使用工作室；用 --auth 用户名:密码 启动可设置登录。",
        "en": "Anybody who can reach this page may use the studio; start it with --auth USER:PASSWORD to ask for a "
        "password.",
    },
    # Batch.
    "tab_batch": {"zh": "批量合成", "en": "Batch"},
    "about_batch": {
        "zh": "上传文本（每行一句）、CSV、TSV、JSONL 或 SRT 字幕文件，全部合成后打包下载。"
        "关闭页面或重启工作室后会继续；某一行失败不影响其他行。",
        "en": "Give a text (a line each), CSV, TSV, JSONL or SRT file and get a zip of sound. It goes on when you "
        "close the page, and after a restart; a row that fails costs no other.",
    },
    "batch_file": {
        "zh": "批量文件（.txt .csv .tsv .jsonl .srt）",
        "en": "Batch file (.txt .csv .tsv .jsonl .srt)",
    },
    "batch_columns": {
        "zh": "CSV/TSV/JSONL 的列：text（必需）、name、voice、instruction、mode、seed、speed。"
        "SRT 另得一条按时间对齐的完整音轨。",
        "en": "Columns of CSV, TSV and JSONL: text (needed), name, voice, instruction, mode, seed, speed. "
        "Of an SRT file you also get one track with each line at its time.",
    },
    "batch_mode": {"zh": "合成方式", "en": "Mode"},
    "batch_format": {"zh": "格式", "en": "Format"},
    "batch_start": {"zh": "开始批量合成", "en": "Start batch"},
    "batch_read": {"zh": "共 {count} 行，第一行：{first}", "en": "{count} rows, the first one: {first}"},
    "batch_read_one": {"zh": "共 {count} 行：{first}", "en": "{count} row: {first}"},
    "batch_started_one": {"zh": "已开始，共 {count} 行。", "en": "Started: {count} row."},
    "batch_started": {"zh": "已开始，共 {count} 行。", "en": "Started: {count} rows."},
    "batch_no_file": {"zh": "请先选择一个批量文件。", "en": "Choose a batch file first."},
    "batch_list": {"zh": "我的批量任务", "en": "My batches"},
    "batch_none": {"zh": "还没有批量任务。", "en": "No batches yet."},
    "batch_stop": {"zh": "停止", "en": "Stop"},
    "batch_resume": {"zh": "继续", "en": "Go on"},
    "batch_retry": {"zh": "重试失败的行", "en": "Try failed rows again"},
    "batch_delete": {"zh": "删除", "en": "Delete"},
    "batch_archive": {"zh": "打包下载", "en": "Download zip"},
    "batch_running": {"zh": "合成中", "en": "speaking"},
    "batch_stopped": {"zh": "已停止", "en": "stopped"},
    "batch_done": {"zh": "已完成", "en": "done"},
    "batch_line": {
        "zh": "{name} · {state} · {spoken}/{total} 行 · {seconds:.0f} 秒声音",
        "en": "{name} · {state} · {spoken} of {total} rows · {seconds:.0f} s of sound",
    },
    "batch_line_one": {
        "zh": "{name} · {state} · {spoken}/{total} 行 · {seconds:.0f} 秒声音",
        "en": "{name} · {state} · {spoken} of {total} row · {seconds:.0f} s of sound",
    },
    "batch_failed": {"zh": "{count} 行失败：", "en": "{count} failed:"},
    "batch_row_failed": {"zh": "第 {row} 行：{reason}", "en": "row {row}: {reason}"},
    "batch_more": {"zh": "……其余见压缩包里的 report.csv", "en": "… the others are in report.csv of the zip"},
    # History.
    "tab_history": {"zh": "历史", "en": "History"},
    "about_history": {
        "zh": "这个浏览器合成过的声音和所用的参考音频，只有你能看到；{keep}。",
        "en": "What this browser has had made, with the clips it was made from; only you see it. {keep}.",
    },
    "history_kept": {"zh": "保留 {days} 天", "en": "Kept for {days} days"},
    "history_kept_one": {"zh": "保留 {days} 天", "en": "Kept for {days} day"},
    "history_kept_always": {"zh": "一直保留，直到你删除", "en": "Kept until you delete it"},
    "history_none": {
        "zh": "还没有结果。生成的声音会出现在这里。",
        "en": "Nothing here yet. What you generate appears here.",
    },
    "history_no_cookie": {
        "zh": "浏览器没有保存 Cookie，因此无法记录历史。",
        "en": "Your browser keeps no cookies, so there is no history.",
    },
    "history_refresh": {"zh": "刷新", "en": "Refresh"},
    "history_clear": {"zh": "全部删除", "en": "Delete all"},
    "history_clear_sure": {"zh": "确定全部删除", "en": "Really delete all"},
    "history_reuse": {"zh": "再次使用这些设置", "en": "Use these settings"},
    "history_delete": {"zh": "删除", "en": "Delete"},
    "history_download": {"zh": "下载", "en": "Download"},
    "history_pick": {"zh": "结果", "en": "Results"},
    "history_listen": {"zh": "试听", "en": "Listen"},
    "history_reused": {"zh": "设置已填入“{tab}”。", "en": "The settings are in “{tab}”."},
    "history_clip_gone": {
        "zh": "当时的参考音频已不在，请重新上传。",
        "en": "The clip is no longer there; give it again.",
    },
}
