"""How numbers, dates, money, codes and signs are read, in sentences of four languages."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.frontend.clean import clean
from inference.frontend.normalise import language_of
from inference.frontend.normalise import spoken as read_aloud
from inference.frontend.roman import roman_value
from inference.frontend.text import normalise_prompt, prepare_text
from tests.frontend.text_support import nano_tokenizer

pytestmark = pytest.mark.unit


def spoken(text: str) -> str:
    return " ".join(part.text for part in prepare_text(text, nano_tokenizer()))


def languages(text: str) -> set[str]:
    return {part.language for part in prepare_text(text, nano_tokenizer())}


ENGLISH = [
    # Books, telephones and other things that are spelled.
    (
        "ISBN 978-3-16-148410-0 is out.",
        "ISBN nine seven eight, three, one six, one four eight four one zero, zero is out.",
    ),
    ("ISBN-10: 0-306-40615-X", "ISBN ten: zero, three zero six, four zero six one five, X."),
    (
        "Call +1 (555) 123-4567.",
        "Call plus one, five five five, one two three, four five six seven.",
    ),
    (
        "Call +44 20 7946 0958 now.",
        "Call plus four four, two zero, seven nine four six, zero nine five eight now.",
    ),
    ("Dial 555 123 4567.", "Dial five five five, one two three, four five six seven."),
    ("1-800-555-0199", "one, eight zero zero, five five five, zero one nine nine."),
    ("Room 101, zip 90210", "Room one oh one, zip nine oh two one oh."),
    ("Flight BA2490 and an H100", "Flight BA two four nine zero and an H one hundred."),
    ("127.0.0.1:8080", "one two seven point zero point zero point one colon eight zero eight zero."),
    # Dates.
    ("On 12/25/2024 we met.", "On December twenty fifth, twenty twenty four we met."),
    ("On 25/12/2024 we met.", "On December twenty fifth, twenty twenty four we met."),
    ("On 05.12.2024 we met.", "On December fifth, twenty twenty four we met."),
    ("12/25/24 it is", "December twenty fifth, twenty twenty four it is."),
    ("Due 2024-12-25, ok?", "Due December twenty fifth, twenty twenty four, ok?"),
    ("Since 2024-01", "Since January twenty twenty four."),
    ("It was 5 December.", "It was the fifth of December."),
    ("Born 5 December 1990 in Rome.", "Born the fifth of December nineteen ninety in Rome."),
    ("the 5th of December, 2020", "the fifth of December, twenty twenty."),
    ("Dec 5th, 2024 or Jan. 5", "December fifth, twenty twenty four or January fifth."),
    ("We may 3 times.", "We may three times."),
    ("1990–2000, mid-2024", "nineteen ninety to two thousand, mid twenty twenty four."),
    ("Q3 2024, FY2024", "Q three twenty twenty four, FY twenty twenty four."),
    ("'90s and 80s", "nineties and eighties."),
    ("Mon–Fri 9–5", "Monday to Friday nine to five."),
    # Enumerations, fractions, powers, sums.
    ("① First, ② second", "one, First, two, second."),
    ("Add ½ cup and ¼ spoon.", "Add one half cup and one quarter spoon."),
    ("1½ cups, 2¾ hours, 1 1/2", "one and a half cups, two and three quarters hours, one and a half."),
    ("5/8, 7/16, 22/7", "five eighths, seven sixteenths, twenty two over seven."),
    ("3.5/5 stars on 9/11", "three point five out of five stars on nine eleven."),
    ("2^3, x², 10⁻⁶", "two cubed, x squared, ten to the power of minus six."),
    ("7 - 3 = 4, 3 x 4 = 12", "seven minus three equals four, three times four equals twelve."),
    ("1e5 or .5", "one times ten to the power of five or point five."),
    ("~50, >50, ≥ 5", "about fifty, more than fifty, at least five."),
    ("1.5x, 10x faster, 64x48", "one point five times, ten times faster, sixty four by forty eight."),
    # Versions, times, ranges.
    ("Python 3.11.2 and v2.0", "Python three point eleven point two and v two point zero."),
    ("At 3:05 pm, 15:05.", "At three oh five P M, fifteen oh five."),
    ("9:00 a.m. tomorrow, 12.30pm", "nine A M tomorrow, twelve thirty P M."),
    ("10:30–11:45, 10am-5pm", "ten thirty to eleven forty five, ten A M to five P M."),
    ("Pages 10–20, 5—10", "Pages ten to twenty, five to ten."),
    ("12kg–15kg, 5%–10%", "twelve kilograms to fifteen kilograms, five percent to ten percent."),
    ("The score was 3:2.", "The score was three to two."),
    # Measures.
    ("−3°C, 72°F", "minus three degrees Celsius, seventy two degrees Fahrenheit."),
    ("20–25°C, 37.5 °", "twenty to twenty five degrees Celsius, thirty seven point five degrees."),
    ("100 km/h, 60 mph", "one hundred kilometers per hour, sixty miles per hour."),
    ("1 ft, 6 ft, 5'10\"", "one foot, six feet, five foot ten."),
    ("1 m², 5 lbs, 100 Mbps", "one square meter, five pounds, one hundred megabits per second."),
    ("10-20%, 0.5 %", "ten to twenty percent, zero point five percent."),
    ("100k views, 5M, a 4K film", "one hundred thousand views, five million, a four K film."),
    # Money.
    ("€1,234.50", "one thousand two hundred and thirty four euros and fifty cents."),
    ("3.50 €, 50€", "three euros and fifty cents, fifty euros."),
    ("$5-$10, $20–30", "five dollars to ten dollars, twenty to thirty dollars."),
    ("100 USD, EUR 20, $100/month", "one hundred dollars, twenty euros, one hundred dollars per month."),
    # Kings and chapters.
    ("Louis XIV and Henry VIII", "Louis the fourteenth and Henry the eighth."),
    ("Chapter IV, World War II", "Chapter four, World War two."),
    ("King Harald V, the XX century", "King Harald the fifth, the twentieth century."),
    ("I am a CD, mix it.", "I am a CD, mix it."),
    # Tags and marks.
    ("#MachineLearning by @user, #1", "hashtag Machine Learning by at user, number one."),
    ("C# and C++, No. 5", "C sharp and C plus plus, number five."),
    ("http://example.com/a?x=1&y=2", "example dot com slash a question mark x equals one and y equals two."),
]  # fmt: skip

CHINESE = [
    ("书号ISBN 978-3-16-148410-0已出版", "书号ISBN九七八，三，一六，一四八四一零，零已出版。"),
    ("会议在12/25/2024或2024-12-25举行", "会议在二零二四年十二月二十五日或二零二四年十二月二十五日举行。"),
    ("他25/12/2024到，25.12.2024走", "他二零二四年十二月二十五日到，二零二四年十二月二十五日走。"),
    ("在5 December和Dec 5, 2024见面", "在十二月五日和二零二四年十二月五日见面。"),
    ("从2024-01到2020—2024年", "从二零二四年一月到二零二零到二零二四年。"),
    ("3月5日-11日，8月8日—10日", "三月五日到十一日，八月八日到十日。"),
    ("①第一，②第二，步骤③", "一，第一，二，第二，步骤三。"),
    ("加½杯水，1½小时，¼勺", "加二分之一杯水，一又二分之一小时，四分之一勺。"),
    ("版本3.11.2和v2.0，v2", "版本三点十一点二和v二点零，v二。"),
    ("下午3:05，3:05 pm，早上8：30", "下午三点零五分，下午三点零五分，早上八点三十分。"),
    ("2:30到了，8:00-17:30", "两点三十分到了，八点整到十七点三十分。"),
    ("第10–20页，5—10天", "第十到二十页，五到十天。"),
    ("气温−3℃，20–25°C，零下2℃", "气温负三摄氏度，二十到二十五摄氏度，零下二摄氏度。"),
    ("花了€1,234.50和$0.99", "花了一千二百三十四点五欧元和零点九九美元。"),
    ("约$5-$10，100 USD，RMB 50", "约五美元到十美元，一百美元，五十元。"),
    ("电话+1 (555) 123-4567", "电话加幺，五五五，幺二三，四五六七。"),
    ("电话(010)12345678，打110", "电话零幺零，幺二三四五六七八，打幺幺零。"),
    ("张XX说XX公司很好", "张XX说XX公司很好。"),
    ("路易XIV，亨利VIII，第IV章", "路易十四，亨利八世，第四章。"),
    ("2/3的人，1 1/2倍，50/50", "三分之二的人，一又二分之一倍，五十比五十。"),
    ("增长50%，0.5 %，10%-20%", "增长百分之五十，百分之零点五，百分之十到百分之二十。"),
    ("限速60km/h，2kg，100ml/天", "限速每小时六十公里，两千克，一百毫升每天。"),
    ("#话题 请看#公告#，@小明", "话题话题请看公告，艾特小明。"),
    ("排名#3，№7", "排名三号，第七。"),
    ("航班CA1234，402室，H100", "航班CA一二三四，四零二室，H一百。"),
    ("三乘四：3×4=12，7-3=4", "三乘四：三乘四等于十二，七减三等于四。"),
    ("十的幂：2^3，3.2e-4", "十的幂：二的三次方，三点二乘十的负四次方。"),
    ("比分3：2，他3-1获胜", "比分三比二，他三比一获胜。"),
    ("2万，2亿，2年，2年级，第2周", "两万，两亿，两年，二年级，第二周。"),
    ("100+人，10x，5'10\"", "一百多人，十倍，五英尺十英寸。"),
    ("1.首先，2.其次", "一，首先，二，其次。"),
]  # fmt: skip

JAPANESE = [
    ("今日は2024-12-05です。", "今日は二千二十四年十二月五日です。"),
    ("電話は03-1234-5678です。", "電話はゼロ三、一二三四、五六七八です。"),
    ("3:05に、10〜20人で行く。", "三時五分に、十から二十人で行く。"),
    ("これは￥1,000と3.14と50%です。", "これは千円と三点一四と五十パーセントです。"),
    ("100km/hで、-5℃の1/2を。", "時速百キロメートルで、マイナス五度の二分の一を。"),
    ("ISBN 978-4-00-310101-8を読む。", "ISBN九七八、四、ゼロゼロ、三一ゼロ一ゼロ一、八を読む。"),
    ("a@example.comへどうぞ。", "aアットマークexampleドットcomへどうぞ。"),
]  # fmt: skip

KOREAN = [
    ("오늘은 2024년 6월 5일입니다.", "오늘은 이천이십사년 유월 오일입니다."),
    ("2024-10-09에 만나요.", "이천이십사년 시월 구일에 만나요."),
    ("전화는 010-1234-5678입니다.", "전화는 공일공, 일이삼사, 오육칠팔입니다."),
    ("사과 3개와 사람 20명", "사과 세 개와 사람 스무 명."),
    ("오후 3시 5분에 3번 출구에서", "오후 세 시 오분에 삼번 출구에서."),
    ("3:05 pm에 와요.", "오후 세 시 오 분에 와요."),
    ("가격은 1,234원, ₩10,000", "가격은 천이백삼십사원, 만 원."),
    ("시속 100km/h, 25℃, 50%", "시속 시속 백 킬로미터, 이십오 도, 오십 퍼센트."),
    ("비율은 3.14와 1/2", "비율은 삼 점 일사와 이분의 일."),
    ("10~20명이 왔어요.", "열에서 스무 명이 왔어요."),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), ENGLISH)
def test_english(text: str, expected: str) -> None:
    assert spoken(text) == expected
    assert languages(text) == {"en"}


@pytest.mark.parametrize(("text", "expected"), CHINESE)
def test_chinese(text: str, expected: str) -> None:
    assert spoken(text) == expected
    assert languages(text) == {"zh"}


@pytest.mark.parametrize(("text", "expected"), JAPANESE)
def test_japanese(text: str, expected: str) -> None:
    assert spoken(text) == expected
    assert languages(text) == {"ja"}


@pytest.mark.parametrize(("text", "expected"), KOREAN)
def test_korean(text: str, expected: str) -> None:
    assert spoken(text) == expected
    assert languages(text) == {"ko"}


@pytest.mark.parametrize("text", [text for text, _ in (*ENGLISH, *CHINESE, *JAPANESE, *KOREAN)])
def test_no_digit_is_left(text: str) -> None:
    assert not any(character.isnumeric() and character.isascii() for character in spoken(text))
    assert not set(spoken(text)) & set("½¼¾①②③²³€$%#@℃°")


def test_impossible_dates_are_no_dates() -> None:
    assert "month" not in spoken("13/45/2024 is nothing") and "thirteen" in spoken("13/45/2024 is nothing")
    assert "日" not in spoken("编号2024-13-45没有")


def test_numbers_alone_follow_the_punctuation() -> None:
    assert language_of("50%，3.5%") == "zh"
    assert language_of("50%, 3.5%") == "en"
    assert language_of("16GB，2.4GHz，5km") == "zh"
    assert spoken("多远？5 km。") == "多远？五公里。"
    assert spoken("你看。I have 3 cats.") == "你看。I have three cats."


def test_sentences_do_not_end_inside_abbreviated_dates_and_addresses() -> None:
    text = "See no one on Jan. 5 at No. 7, or http://a.com/b?c=d now. "
    for part in prepare_text(text * 8, nano_tokenizer(), max_tokens=120):
        assert (text * 8)[slice(*part.source_span)].strip().startswith("See no one")


def test_a_transcript_is_read_alike() -> None:
    assert normalise_prompt("On 5 December, ½ of it.") == "On the fifth of December, one half of it."


@pytest.mark.parametrize(
    ("numeral", "value"),
    [("II", 2), ("IV", 4), ("IX", 9), ("XIV", 14), ("XIX", 19), ("XXXVIII", 38), ("V", 5)],
)
def test_roman_values(numeral: str, value: int) -> None:
    assert roman_value(numeral) == value


@settings(max_examples=200, deadline=None)
@given(
    st.text(alphabet="0123456789.,:/-–+%$€#@°xXIVve^½① amkhGBC年月개円'\"", min_size=1, max_size=60),
    st.sampled_from(["en", "zh", "ja", "ko"]),
)
def test_any_mixture_of_digits_and_signs_is_read_to_the_last_digit(text: str, language: str) -> None:
    read = read_aloud(clean(text).text, language)
    assert not any(character.isascii() and character.isdigit() for character in read)
