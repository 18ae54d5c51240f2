"""Mandarin readings of money, measures, percentages, fractions, powers and ranges."""

from __future__ import annotations

import re

from inference.frontend.number_words import han_digits, mandarin_cardinal
from inference.frontend.rule import NUMBER, Rule

CURRENCIES = {"$": "美元", "€": "欧元", "£": "英镑", "￥": "元", "₩": "韩元"}
_CODES = {"USD": "美元", "US$": "美元", "EUR": "欧元", "GBP": "英镑", "CNY": "元", "RMB": "元", "KRW": "韩元"}
_CODES |= {"JPY": "日元", "HKD": "港元", "HK$": "港元"}
_UNITS = {
    "mmHg": "毫米汞柱",
    "km/h": "公里每小时",
    "m/s": "米每秒",
    "km²": "平方公里",
    "cm²": "平方厘米",
    "m²": "平方米",
    "m³": "立方米",
    "km": "公里",
    "cm": "厘米",
    "mm": "毫米",
    "nm": "纳米",
    "kg": "千克",
    "mg": "毫克",
    "ml": "毫升",
    "mL": "毫升",
    "L": "升",
    "kWh": "千瓦时",
    "mAh": "毫安时",
    "kW": "千瓦",
    "W": "瓦",
    "V": "伏",
    "kcal": "千卡",
    "GHz": "吉赫兹",
    "MHz": "兆赫兹",
    "kHz": "千赫兹",
    "Hz": "赫兹",
    "dB": "分贝",
    "ms": "毫秒",
    "Gbps": "吉比特每秒",
    "Mbps": "兆比特每秒",
    "kbps": "千比特每秒",
    "fps": "帧每秒",
    "rpm": "转每分钟",
    "mph": "英里每小时",
    "ft": "英尺",
    "lb": "磅",
    "oz": "盎司",
    "°C": "摄氏度",
    "℃": "摄氏度",
    "°F": "华氏度",
    "℉": "华氏度",
    "°": "度",
    "h": "小时",
    "min": "分钟",
    "m": "米",
    "g": "克",
    "元": "元",
}
_PER = {"km/h": ("每小时", "公里"), "mph": ("每小时", "英里"), "m/s": ("每秒", "米"), "fps": ("每秒", "帧")}
_UNPAIRED = frozenset(("°C", "℃", "°F", "℉"))  # minus two degrees is 零下二, not 两
POLARITY = {"": "", "+": "正", "-": "负", "±": "正负"}
HAN_NUMBER = "零一二三四五六七八九十百千万亿"


def spoken_number(digits: str, pair: bool = False) -> str:
    """`"1,305"`, `"3.14"` or `"007"` as a speaker would say it; `pair`: a lone 2 is 两."""
    whole, _, decimals = digits.replace(",", "").partition(".")
    read_singly = len(whole) > 16 or (len(whole) > 1 and whole[0] == "0")
    words = (
        han_digits(whole) if read_singly else mandarin_cardinal(int(whole or "0"), pair=pair and not decimals)
    )
    return f"{words}点{han_digits(decimals)}" if decimals else words


def _percent(match: re.Match[str]) -> str:
    sign = POLARITY[match["sign"] or ""]
    whole = "百分之" if match["unit"] == "%" else "千分之"
    if match["until"]:
        return f"{sign}{whole}{spoken_number(match['amount'])}到{whole}{spoken_number(match['until'])}"
    return f"{sign}{whole}{spoken_number(match['amount'])}"


def _pressure(match: re.Match[str]) -> str:
    return f"{match[1] or ''}{spoken_number(match[2])}，{spoken_number(match[3])}{'毫米汞柱' if match[4] else ''}"


def _measure(match: re.Match[str]) -> str:
    sign, written = POLARITY[match["sign"] or ""], match["unit"]
    amount = sign + spoken_number(match["amount"], pair=written not in _UNPAIRED)
    per, unit = _PER.get(written, ("", _UNITS[written]))
    if match["until"]:
        amount += f"到{spoken_number(match['until'])}"
    return f"{per}{amount}{unit}"


def _money(match: re.Match[str]) -> str:
    found = match.groupdict()
    unit = CURRENCIES.get(found["sign"]) or _CODES[found["sign"]]
    scale = found.get("scale") or ""
    amount = _price(found["amount"], pair=not scale)
    if found.get("until"):
        amount += f"到{_price(found['until'])}"
    return f"{amount}{scale}{unit}"


def _price(digits: str, pair: bool = False) -> str:
    """1,234.50 is said without the last nought."""
    return spoken_number(re.sub(r"\.?0+$", "", digits) if "." in digits else digits, pair)


def _fraction(match: re.Match[str]) -> str:
    over, under = match["over"], match["under"]
    if match.group() == "24/7":
        return "七乘二十四小时"
    if over == under:
        return f"{spoken_number(over)}比{spoken_number(under)}"
    whole = f"{spoken_number(match['whole'])}又" if match["whole"] else ""
    return f"{whole}{spoken_number(under)}分之{spoken_number(over)}"


def _range(match: re.Match[str]) -> str:
    sign = "负" if match["sign"] else ""
    until = "负" if match["below"] else ""
    return f"{sign}{spoken_number(match['amount'])}到{until}{spoken_number(match['until'])}"


def _exponent(digits: str) -> str:
    value = int(digits)
    return f"{'负' if value < 0 else ''}{mandarin_cardinal(abs(value))}次方"


def _power(match: re.Match[str]) -> str:
    base = spoken_number(match["base"]) if match["base"] else ""
    return f"{base}的{_exponent(match['exponent'])}"


def _scientific(match: re.Match[str]) -> str:
    return f"{spoken_number(match[1])}乘十的{_exponent(match[2])}"


_UNIT = "|".join(re.escape(unit) for unit in sorted(_UNITS, key=len, reverse=True))
_SIGN = "|".join(re.escape(sign) for sign in ("US$", "HK$", *CURRENCIES))
_CODE = "|".join(code for code in _CODES if code.isalpha())
_SIGNED = r"(?P<sign>(?<![A-Za-z0-9%)])[+±-])?"
_UNTIL = rf"(?:\s?[-~—]\s?(?P<until>{NUMBER}))?"
_WINS = "获胜|战胜|击败|领先|落后|战平|险胜|大胜|完胜|逆转|取胜"
_COUNTED = "个只条位张本次天人件块岁杯台辆家名种遍倍斤箱套口米吨元秒周颗棵篇首部把双层千万亿"
PERCENT: list[Rule] = [
    (re.compile(r"()(?<!\d)(\d{2,3})/(\d{2,3})\s?(mmHg)"), _pressure),
    (re.compile(r"(血压\D{0,3})(\d{2,3})/(\d{2,3})(?![\d/])(mmHg)?"), _pressure),
    (
        re.compile(
            rf"{_SIGNED}(?<![\d.])(?P<amount>{NUMBER})\s?(?:[%‰]?\s?[-~]\s?(?P<until>{NUMBER}))?\s?(?P<unit>[%‰])"
        ),
        _percent,
    ),
]
MONEY: list[Rule] = [
    (re.compile(rf"(?<=\d)\s?[-~—]\s?(?=(?:{_SIGN})\s?\d)"), lambda m: "到"),
    (
        re.compile(
            rf"(?P<sign>{_SIGN}|(?<![A-Za-z])(?:{_CODE})(?= ?\d))\s?(?P<amount>{NUMBER})"
            rf"{_UNTIL}\s?(?P<scale>[万亿])?(?:元)?"
        ),
        _money,
    ),
    (
        re.compile(
            rf"(?<![\d.,])(?P<amount>{NUMBER})\s?(?P<scale>[万亿])?\s?(?P<sign>[€£￥₩$]|(?:{_CODE})(?![A-Za-z]))(?!\d)"
        ),
        _money,
    ),
]
AMOUNTS: list[Rule] = [
    (re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([+-]?\d{1,3})(?![A-Za-z\d])", re.A), _scientific),
    (re.compile(r"(?P<base>\d+(?:\.\d+)?)?\^(?P<exponent>-?\d{1,9})(?!\d)"), _power),
    (re.compile(r"(?<=\d)\s*[-—]\s*(?=\d+(?:\.\d+)?\s*=)"), lambda m: "减"),
    (re.compile(rf"(?<=\d)-(?=\d{{1,3}}(?:{_WINS}))"), lambda m: "比"),
    (re.compile(r"(?<=\d)\+(?=[\u4e00-\u9fff])"), lambda m: "多"),  # 100+人
    (re.compile(r"(?<=\d)h(?=\d)"), lambda m: "小时"),
    (
        re.compile(r"(?<![A-Za-z\d.])(\d{1,2})'\s?(\d{1,2})(?:\"|'')"),
        lambda m: f"{spoken_number(m[1])}英尺{spoken_number(m[2])}英寸",
    ),
    (
        re.compile(
            rf"{_SIGNED}(?<![\d.])(?<![A-Za-z])(?P<amount>{NUMBER}){_UNTIL}\s?(?P<unit>{_UNIT})(?![A-Za-z²³])"
        ),
        _measure,
    ),
    (
        re.compile(
            rf"(?P<sign>(?<![A-Za-z0-9%)])-)?(?<![A-Za-z\d.])(?P<amount>{NUMBER})\s?[-~—]\s?(?P<below>-)?"
            rf"(?P<until>{NUMBER})(?![\d-])"
        ),
        _range,
    ),
    (re.compile(rf"(?<=[{HAN_NUMBER}])\s?({_UNIT})(?![A-Za-z²³])"), lambda m: _UNITS[m[1]]),
    (
        re.compile(r"(?<![\d/.,])(?:(?P<whole>\d{1,4}) )?(?P<over>\d{1,4})/(?P<under>\d{1,4})(?![\d/=])"),
        _fraction,
    ),
    (
        re.compile(rf"(?<![\w.])({NUMBER})[xX](?![A-Za-z\d])", re.A),
        lambda m: f"{spoken_number(m[1], pair=True)}倍",
    ),
    (re.compile(r"(?<=\d)\s?[xX]\s?(?=\d)"), lambda m: "乘"),
]
COUNTS: list[Rule] = [
    (
        re.compile(rf"(?<![\d.第])2(?=[{_COUNTED}]|小时|分钟|公里|公斤|千克|厘米|年(?!级|月)|点(?!\d))"),
        lambda m: "两",
    ),
]
