"""Mandarin readings of numbers, units, addresses and signs."""

from __future__ import annotations

import re
from collections.abc import Callable

from inference.frontend.number_words import han_digits, mandarin_cardinal

NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_UNITS = {
    "mmHg": "毫米汞柱",
    "km/h": "公里每小时",
    "m/s": "米每秒",
    "km²": "平方公里",
    "m²": "平方米",
    "m³": "立方米",
    "km": "公里",
    "cm": "厘米",
    "mm": "毫米",
    "kg": "千克",
    "mg": "毫克",
    "ml": "毫升",
    "mL": "毫升",
    "kWh": "千瓦时",
    "GHz": "吉赫兹",
    "MHz": "兆赫兹",
    "kHz": "千赫兹",
    "Hz": "赫兹",
    "ms": "毫秒",
    "Mbps": "兆比特每秒",
    "°C": "摄氏度",
    "℃": "摄氏度",
    "°F": "华氏度",
    "℉": "华氏度",
    "°": "度",
    "m": "米",
    "g": "克",
    "元": "元",
}
_CURRENCIES = {"$": "美元", "€": "欧元", "£": "英镑", "￥": "元", "₩": "韩元"}
_SIGNS = {
    "+": "加",
    "=": "等于",
    "×": "乘",
    "÷": "除以",
    "±": "正负",
    "²": "平方",
    "³": "立方",
    "≈": "约等于",
}
_SIGNS |= {
    "≤": "小于等于",
    "≥": "大于等于",
    "≠": "不等于",
    "→": "到",
    "&": "和",
    "%": "百分号",
    "‰": "千分号",
}
_SIGNS |= {"℃": "摄氏度", "℉": "华氏度", "°": "度", "№": "号", "#": "井号", "@": "艾特", **_CURRENCIES}
_POLARITY = {"": "", "+": "正", "-": "负", "±": "正负"}
_ADDRESS_MARKS = {".": "点", "@": "艾特", "/": "斜杠", "-": "杠", "_": "下划线", ":": "冒号", "?": "问号"}
_ADDRESS_MARKS |= {"=": "等于", "&": "和", "#": "井号", "%": "百分号", "+": "加", "~": "波浪号"}

Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]


def say_chinese(text: str) -> str:
    """`text` with every number, unit and sign in words; words and punctuation stay."""
    for pattern, say in _RULES:
        text = pattern.sub(say, text)
    return re.sub(r"[<>|~^√\\_]", " ", text)


def spoken_number(digits: str, pair: bool = False) -> str:
    """`"1,305"`, `"3.14"` or `"007"` as a speaker would say it; `pair`: a lone 2 is 两."""
    whole, _, decimals = digits.replace(",", "").partition(".")
    read_singly = len(whole) > 16 or (len(whole) > 1 and whole[0] == "0")
    words = (
        han_digits(whole) if read_singly else mandarin_cardinal(int(whole or "0"), pair=pair and not decimals)
    )
    return f"{words}点{han_digits(decimals)}" if decimals else words


def _address(match: re.Match[str]) -> str:
    bare = re.sub(r"^https?://", "", match.group()).rstrip("/")
    digits = re.sub(r"\d+", lambda found: han_digits(found.group()), bare)
    return re.sub(r"[^\w\s]|_", lambda mark: _ADDRESS_MARKS.get(mark.group(), ""), digits)


def _dotted(match: re.Match[str]) -> str:
    parts = match[2].split(".")
    if len(parts) == 4 or max(map(len, parts[1:])) > 2:
        return match[1] + "点".join(han_digits(part) for part in parts)
    return match[1] + "点".join(spoken_number(part) for part in parts)


def _telephone(match: re.Match[str]) -> str:
    plus = "加" if match.group().startswith("+") else ""
    return plus + "，".join(han_digits(group, telephone=True) for group in re.findall(r"\d+", match.group()))


def _percent(match: re.Match[str]) -> str:
    sign = _POLARITY[match["sign"] or ""]
    whole = "百分之" if match["unit"] == "%" else "千分之"
    if match["until"]:
        return f"{sign}{whole}{spoken_number(match['amount'])}到{whole}{spoken_number(match['until'])}"
    return f"{sign}{whole}{spoken_number(match['amount'])}"


def _pressure(match: re.Match[str]) -> str:
    return f"{spoken_number(match[1])}，{spoken_number(match[2])}毫米汞柱"


def _measure(match: re.Match[str]) -> str:
    sign = _POLARITY[match["sign"] or ""]
    number = sign + spoken_number(match["amount"])
    return f"每小时{number}公里" if match["unit"] == "km/h" else number + _UNITS[match["unit"]]


def _money(match: re.Match[str]) -> str:
    return spoken_number(match["amount"]) + (match["scale"] or "") + _CURRENCIES[match["sign"]]


def _clock(match: re.Match[str]) -> str:
    half = {"a": "上午", "p": "下午"}.get((match["half"] or "").lower(), "")
    minute = int(match["minute"])
    words = f"{half}{mandarin_cardinal(int(match['hour']))}点" + ("整" if not minute else "")
    if minute:
        words += ("零" if minute < 10 else "") + mandarin_cardinal(minute) + "分"
    return words + (f"{mandarin_cardinal(int(match['second']))}秒" if match["second"] else "")


def _date(match: re.Match[str]) -> str:
    month, day = int(match["month"]), int(match["day"])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return han_digits("".join(re.findall(r"\d", match.group())))
    return f"{han_digits(match['year'])}年{mandarin_cardinal(month)}月{mandarin_cardinal(day)}日"


def _fraction(match: re.Match[str]) -> str:
    return f"{spoken_number(match[2])}分之{spoken_number(match[1])}"


def _range(match: re.Match[str]) -> str:
    sign = "负" if match["sign"] else ""
    until = "负" if match["below"] else ""
    return f"{sign}{spoken_number(match['amount'])}到{until}{spoken_number(match['until'])}"


def _sign(match: re.Match[str]) -> str:
    return _POLARITY[match.group()]


_UNIT = "|".join(re.escape(unit) for unit in _UNITS)
_HOST = r"[\w-]+(?:\.[\w-]+)+(?::\d+)?(?:/[\w./?=&#%~+-]*\w)?"
_ENDINGS = "com|org|net|io|cn|ai|edu|gov|dev|app"
_COUNTED = "个只条位张本次天人件块岁杯台辆家名种遍倍斤箱套口"
_NAMED_BY_DIGITS = (
    "代码|编号|编码|房间|电话|热线|邮编|QQ|号码|密码|车牌|尾号|拨打|验证码|工号|学号|订单号|ISBN"
)
_RULES: list[Rule] = [
    (re.compile(rf"https?://{_HOST}|[\w.+-]+@[\w-]+(?:\.[\w-]+)+|www\.{_HOST}", re.A), _address),
    (re.compile(rf"(?<![\w.])[a-zA-Z][\w-]*(?:\.[\w-]+)*\.(?:{_ENDINGS})(?!\w)", re.A), _address),
    (re.compile(r"(\d{2,3})/(\d{2,3})\s?mmHg"), _pressure),
    (
        re.compile(
            rf"(?P<sign>(?<![A-Za-z0-9%])[+±-])?(?<![\d.])(?P<amount>{NUMBER})(?:%?[-~](?P<until>{NUMBER}))?(?P<unit>[%‰])"
        ),
        _percent,
    ),
    (re.compile(r"(?P<year>(?<!\d)[12]\d{3})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})(?![\d.-])"), _date),
    (re.compile(r"(?<![\d.,-])(?:\+86[- ]?)?1[3-9]\d[- ]?\d{4}[- ]?\d{4}(?![\d.])"), _telephone),
    (re.compile(r"(?<![\d.-])\+?(?:0\d{2,3}|[48]00|\d{2,4}(?=-\d+-))(?:-\d{1,8}){1,4}(?![\d-])"), _telephone),
    (re.compile(r"(?<![\d.,])(?:1(?:1[09]|2[02])|1\d{4}|9[56]\d{3})(?=热线|电话|报警)"), _telephone),
    (re.compile(rf"(?P<sign>[$€£￥₩])\s?(?P<amount>{NUMBER})\s?(?P<scale>[万亿])?(?:元)?"), _money),
    (re.compile(r"((?<![A-Za-z])[vV]|(?<!\d)(?<!\d\.))(\d+(?:\.\d+){2,})"), _dotted),
    (re.compile(r"((?<![A-Za-z])[vV])(\d+(?:\.\d+)?)"), _dotted),
    (
        re.compile(rf"((?:{_NAMED_BY_DIGITS})[号是为：:]*\s?)(\d[\d-]{{2,}})"),
        lambda m: m[1] + han_digits(re.sub(r"\D", "", m[2]), telephone=True),
    ),
    (re.compile(r"(?<!\d)(\d{4})[-~](\d{4})(?=年)"), lambda m: f"{han_digits(m[1])}到{han_digits(m[2])}"),
    (re.compile(r"(?<!\d)(\d0)(?=后)"), lambda m: han_digits(m[1])),
    (re.compile(r"(?<!\d)(\d{4})(?=年(?!前|后|来|级|[以之]|的历史))"), lambda m: han_digits(m[1])),
    (
        re.compile(
            r"(?<![\d:])(?P<hour>[01]?\d|2[0-4]):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?(?![\d:])"
            r"(?:\s?(?P<half>[aApP])\.?[mM](?![A-Za-z]))?"
        ),
        _clock,
    ),
    (re.compile(r"(?<=[点分秒整])\s?[-~]\s?(?=[零一二三四五六七八九十])"), lambda m: "到"),
    (
        re.compile(
            rf"(?P<sign>(?<![A-Za-z0-9%)])-)?(?<![A-Za-z\d.])(?P<amount>{NUMBER})\s?[-~]\s?(?P<below>-)?(?P<until>{NUMBER})(?![\d-])"
        ),
        _range,
    ),
    (
        re.compile(
            rf"(?P<sign>(?<![A-Za-z0-9%)])[+±-])?(?<![\d.])(?P<amount>{NUMBER})\s?(?P<unit>{_UNIT})(?![A-Za-z²³])"
        ),
        _measure,
    ),
    (re.compile(rf"(?<=[零一二三四五六七八九十百千万亿])\s?({_UNIT})(?![A-Za-z²³])"), lambda m: _UNITS[m[1]]),
    (re.compile(r"(?<![\d/])(\d{1,4})/(\d{1,4})(?![\d/=])"), _fraction),
    (re.compile(r"(?<=\d)[:：](?=\d)"), lambda m: "比"),
    (re.compile(r"(?<![A-Za-z0-9%)])[+±-](?=\d)"), _sign),
    (re.compile(r"(?<=[A-Za-z])-(?=\d)|(?<=\d)-(?=[A-Za-z])"), lambda m: ""),
    (re.compile(rf"(?<![\d.第])2(?=[{_COUNTED}])"), lambda m: "两"),
    (re.compile(NUMBER), lambda m: spoken_number(m.group())),
    (re.compile(r"(?<=[零一二三四五六七八九十])\*(?=[零一二三四五六七八九十])"), lambda m: "乘"),
    (re.compile(r"(?<=[零一二三四五六七八九十])/(?=[零一二三四五六七八九十])"), lambda m: "除以"),
    (re.compile(r"[$€£￥₩%‰&+=×÷±²³≈≤≥≠→@#№℃℉°]"), lambda m: _SIGNS[m.group()]),
    (re.compile(r"(?<=元)/(?=[\u4e00-\u9fff])"), lambda m: "每"),
    (re.compile(r"(?<=[\u4e00-\u9fff])/(?=[\u4e00-\u9fff])"), lambda m: "、"),
    (re.compile(r"\s*(?:—+|\s-+\s)\s*"), lambda m: "，"),
]
