"""Mandarin readings of what is spelled rather than counted: addresses, telephone and serial numbers, kings, tags."""

from __future__ import annotations

import re

from inference.frontend.chinese_amounts import spoken_number
from inference.frontend.number_words import han_digits, mandarin_cardinal
from inference.frontend.roman import ROMAN, roman_value
from inference.frontend.rule import ADDRESS, Rule

_ADDRESS_MARKS = {".": "点", "@": "艾特", "/": "斜杠", "-": "杠", "_": "下划线", ":": "冒号", "?": "问号"}
_ADDRESS_MARKS |= {"=": "等于", "&": "和", "#": "井号", "%": "百分号", "+": "加", "~": "波浪号"}
_RULERS = (
    "亨利|伊丽莎白|查理|乔治|爱德华|腓力|威廉|保罗|本笃|尼古拉|彼得|亚历山大|拿破仑|詹姆斯|理查|腓特烈|庇护"
)


def _address(match: re.Match[str]) -> str:
    bare = re.sub(r"^https?://", "", match.group()).rstrip("/")
    digits = re.sub(r"\d+", lambda found: han_digits(found.group()), bare)
    return re.sub(r"[^\w\s]|_", lambda mark: _ADDRESS_MARKS.get(mark.group(), ""), digits)


def _dotted(match: re.Match[str]) -> str:
    parts = match[2].split(".")
    port = f"冒号{han_digits(match['port'])}" if match.groupdict().get("port") else ""
    if len(parts) == 4 or max(map(len, parts[1:]), default=0) > 2:
        return match[1] + "点".join(han_digits(part) for part in parts) + port
    return match[1] + "点".join(spoken_number(part) for part in parts) + port


def _groups(text: str, telephone: bool) -> str:
    groups = re.findall(r"\d+|X", text)
    return "，".join(han_digits(group, telephone=telephone) if group.isdigit() else group for group in groups)


def _telephone(match: re.Match[str]) -> str:
    plus = "加" if match.group().startswith("+") else ""
    return plus + _groups(match.group(), telephone=True)


def _model(match: re.Match[str]) -> str:
    """Digits behind letters: `CA1234` → 一二三四, but `H100` → 一百."""
    digits = match.group().lstrip("-")
    round_number = digits.endswith("00") and digits[0] != "0"
    return mandarin_cardinal(int(digits)) if round_number else han_digits(digits)


def _ruler(match: re.Match[str]) -> str:
    return f"{match[1]}{mandarin_cardinal(roman_value(match[2]))}世"


_NAMED_BY_DIGITS = (
    "代码|编号|编码|房间|电话|热线|邮编|QQ|号码|密码|车牌|尾号|拨打|验证码|工号|学号|单号|身份证号?|[卡账]号"
)
ADDRESSES: list[Rule] = [
    (ADDRESS, _address),
    (re.compile(r"#([^#\s]{1,30})#"), lambda m: m[1]),
    (re.compile(r"(?<![A-Za-z0-9_&])#(?=[^\W\d])"), lambda m: "话题"),
    (re.compile(r"#(\d{1,6})(?!\d)"), lambda m: f"{spoken_number(m[1])}号"),
    (re.compile(r"№\s?(?=\d)|(?<![A-Za-z])No\.\s?(?=\d)"), lambda m: "第"),
]
CODES: list[Rule] = [
    (
        re.compile(r"(ISBN(?:-1[03])?[:：]? ?)(\d[\d -]{8,15}[\dX])(?!\d)"),
        lambda m: m[1] + _groups(m[2], telephone=False),
    ),
]
TELEPHONES: list[Rule] = [
    (re.compile(r"(?<![\d.,-])(?:\+86[- ]?)?1[3-9]\d[- ]?\d{4}[- ]?\d{4}(?![\d.])"), _telephone),
    (re.compile(r"(?<![\d.])\+\d[\d -]{7,}\d"), _telephone),
    (
        re.compile(
            r"(?<![\d.-])\+?(?:0\d{2,3}|[48]00|\d{2,4}(?=-\d+-))(?:-\d{1,8}){1,4}(?: \d{3,4})?(?![\d-])"
        ),
        _telephone,
    ),
    (re.compile(r"(?<![\d.,])(?:1(?:1[09]|2[02])|1\d{4}|9[56]\d{3})(?=热线|电话|报警)"), _telephone),
    (re.compile(r"(?<=[拨打])1(?:1[09]|2[02])(?!\d)"), _telephone),
]
VERSIONS: list[Rule] = [
    (re.compile(r"((?<![A-Za-z])[vV]|(?<!\d)(?<!\d\.))(\d+(?:\.\d+){2,})(?::(?P<port>\d{1,5}))?"), _dotted),
    (re.compile(r"((?<![A-Za-z])[vV])(\d+(?:\.\d+)?)"), _dotted),
    (
        re.compile(rf"((?:{_NAMED_BY_DIGITS})[号是为：:]*\s?)(\d[\d-]{{2,}})"),
        lambda m: m[1] + han_digits(re.sub(r"\D", "", m[2]), telephone=True),
    ),
    (re.compile(r"(?<!\d)\d{3,4}(?=室|号?房(?!间数))"), lambda m: han_digits(m.group(), telephone=True)),
    (re.compile(r"(?<=[A-Za-z])-?\d{3,}(?![\d.:])"), _model),
    (re.compile(rf"({_RULERS})({ROMAN}|V)(?![A-Za-z世])"), _ruler),
    (  # XX and XXX stand for a name that is left out
        re.compile(rf"(?<=[\u4e00-\u9fff])(?!XXX?(?![IVX]))({ROMAN})(?![A-Za-z])"),
        lambda m: mandarin_cardinal(roman_value(m[1])),
    ),
]
