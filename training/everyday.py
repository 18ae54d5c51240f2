"""Everyday English and Mandarin sentences from our own templates: what people type into a text-to-speech page."""

from __future__ import annotations

import random
import re

_ENGLISH_TEMPLATES = """
good {daytime}, {name}.
good {daytime}, and welcome to {place}.
hello {name}, how are you {when}?
hi, my name is {name}, and i live near {place}.
thank you for {gerund}.
thank you very much, {name}, that was {adjective}.
please {verb} {object} before {time}.
could you {verb} {object} for me?
can you tell me where {place} is?
would you like {food} or {food}?
i would like {food}, please.
i think {object} is {adjective}.
i did not know that {object} was so {adjective}.
we are going to {place} {when}.
{name} is going to {verb} {object} {when}.
{name} and {name} went to {place} {past}.
the {noun} is {adjective} and {adjective}.
the {noun} in {place} was {adjective} {past}.
my {relative} bought {number} {plural} at {place}.
there are {number} {plural} in {place}.
it costs {number} dollars and {number} cents.
the meeting starts at {time} on {day}.
your appointment is on {day}, the {ordinal} of {month}, at {time}.
the train to {city} leaves at {time} from platform {small}.
the flight to {city} has been delayed by {number} minutes.
turn {side} at the next {noun}, then go straight for {number} {unit}.
in {number} {unit}, turn {side}.
the temperature in {city} is {number} degrees.
it will be {weather} in {city} {when}.
today is {day}, the {ordinal} of {month}.
what time does {place} open {when}?
why did {name} {verb} {object}?
where did you put {object}?
how many {plural} do we need?
who wants to {verb} {object} with me?
have you ever been to {city}?
do you remember {object} that {name} gave us?
don't forget to {verb} {object}.
i can't find {object}, have you seen it?
i'm sorry, i didn't mean to {verb} {object}.
it's {adjective}, but i'm not sure that it's {adjective}.
she said that {object} would be {adjective}.
he asked me to {verb} {object} {when}.
they have been waiting for {number} hours.
we've got {number} {plural}, and that's enough.
let's {verb} {object} and then go to {place}.
if you {verb} {object}, everything will be {adjective}.
when {name} comes home, we will {verb} {object}.
no, i have never seen such a {adjective} {noun}.
yes, of course, you can {verb} {object}.
what a {adjective} {noun}!
this is the {ordinal} time that {name} has called.
the {noun} belongs to my {relative}.
a {adjective} {noun} stood in front of {place}.
every {day}, {name} likes to {verb} {object}.
{name} works as a {job} in {city}.
my {relative} is a {job}, and my {relative} is a {job}.
the {job} told us to {verb} {object}.
press {small} to {verb} {object}.
your order number is {small} {small} {small} {small}.
please hold the line, a {job} will be with you shortly.
the file has been saved.
are you sure you want to delete {object}?
the download will finish in {number} seconds.
new message from {name}.
battery low, please connect the charger.
once upon a time, there was a {adjective} {noun} who lived in {place}.
the old {noun} looked at the {noun} and smiled.
nobody knew why the {noun} was so {adjective}.
chapter {number}, the {adjective} {noun}.
{name} opened the door, and there stood a {job}.
scientists have found a new kind of {noun} near {city}.
the company from {city} sold {number} {plural} {past}.
the weather was {weather}, so we stayed at {place}.
this song is {adjective}, isn't it?
see you {when}, {name}!
see you at {time}.
good night.
well done, {name}.
i love {food} with {food}.
how do you cook {food}?
add {number} grams of {food} and stir slowly.
to be honest, the {noun} is too {adjective} for me.
speaking of {plural}, did you {verb} {object}?
""".strip().splitlines()

_ENGLISH_WORDS = {
    "daytime": "morning|afternoon|evening",
    "name": "Anna|Peter|Maria|John|David|Emma|Michael|Sarah|Thomas|Lucy|Daniel|Julia|Robert|Helen|James|"
    "Alice|Mister "
    "Brown|Doctor Green|Missus Wilson|Kevin|Laura|Paul|Sophie|George|Nina|Oliver|Grace|Henry|Rachel|Simon",
    "place": "the station|the library|the park|our house|the hospital|the museum|the school|the market|"
    "the airport|the "
    "beach|the kitchen|the office|the hotel|the garden|the theatre|the village|the restaurant|the bank|"
    "the bridge|the "
    "city centre|the mountains|the river|the church|the post office|the supermarket|the lake",
    "when": "today|tomorrow|tonight|next week|this evening|on Monday|in the morning|after lunch|"
    "this weekend|next month|"
    "right now|soon|on Friday night",
    "past": "yesterday|last night|last week|two days ago|last summer|this morning|a month ago|last year",
    "gerund": "coming|calling|waiting|helping us|your patience|listening|reading this|"
    "choosing our service|watching|"
    "all your work|your letter|joining us",
    "adjective": "good|bad|beautiful|strange|wonderful|cold|warm|small|large|quick|slow|quiet|loud|bright|"
    "dark|happy|sad|"
    "angry|tired|hungry|funny|difficult|easy|important|expensive|cheap|fresh|clean|dirty|empty|full|heavy|"
    "light|soft|"
    "hard|young|old|modern|famous|useful|dangerous|safe|simple|terrible|perfect|yellow|green|blue|purple|"
    "golden|wooden",
    "verb": "open|close|find|bring|take|buy|sell|clean|carry|check|finish|start|change|send|write|read|"
    "move|repair|paint|"
    "watch|hide|show|keep|leave|choose|draw|build|visit|move|measure|borrow|return|save|share|describe|"
    "forget",
    "object": "the door|the window|the letter|a book|my keys|the report|the box|your phone|the car|"
    "the picture|the table|a "
    "glass of water|the computer|the message|his jacket|her bag|the old map|this song|that story|"
    "the blue chair|the "
    "garden gate|a new idea|the answer|the photograph|our tickets|the second page|the lamp|a cup of tea|"
    "the dinner",
    "noun": "dog|cat|horse|bird|house|tree|river|road|corner|bridge|child|woman|man|king|queen|teacher|"
    "doctor|ship|train|"
    "car|garden|mountain|cloud|storm|machine|robot|computer|telephone|clock|guitar|piano|story|letter|"
    "picture|window|"
    "door|kitchen|forest|island|castle|village|street|church|museum|market|flower|apple|orange|stone|fish|"
    "bear|mouse",
    "plural": "apples|oranges|books|chairs|tickets|bottles|letters|pictures|people|children|houses|cars|"
    "eggs|boxes|"
    "questions|problems|minutes|pages|songs|flowers|cups|shoes|trees|dogs|cats|horses|birds|stars|coins|"
    "machines",
    "relative": "mother|father|brother|sister|uncle|aunt|cousin|grandmother|grandfather|friend|neighbour|"
    "daughter|son",
    "number": "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fifteen|eighteen|"
    "twenty|twenty one|"
    "twenty five|thirty|thirty four|forty|fifty|fifty six|sixty|seventy|eighty nine|ninety|one hundred|"
    "two hundred and "
    "fifty|five hundred|one thousand|three thousand and twelve|ten thousand|one million",
    "small": "zero|one|two|three|four|five|six|seven|eight|nine",
    "ordinal": "first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|twelfth|fifteenth|"
    "twentieth|twenty first|"
    "thirtieth",
    "day": "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday|morning|evening",
    "month": "January|February|March|April|May|June|July|August|September|October|November|December",
    "time": "nine o'clock|half past seven|a quarter to eight|noon|midnight|ten thirty|six fifteen|"
    "five in the afternoon|"
    "eight forty five|seven in the morning|three o'clock|twenty past two",
    "city": "London|Paris|Berlin|New York|Tokyo|Beijing|Rome|Madrid|Chicago|Sydney|Boston|Moscow|Vienna|"
    "Toronto|Shanghai|"
    "Lisbon|Dublin|Oslo|Cairo|Mexico|Seattle|San Francisco|Hong Kong|Singapore",
    "unit": "metres|kilometres|miles|blocks|yards",
    "side": "left|right",
    "weather": "sunny|cloudy|rainy|windy|foggy|snowy|stormy|cold and clear|warm and dry",
    "food": "coffee|tea|bread and butter|fresh fish|chicken soup|rice|apple pie|orange juice|"
    "chocolate cake|cheese|eggs|"
    "fried potatoes|green salad|a sandwich|strawberry ice cream|pasta|mushrooms|honey|a glass of milk|"
    "tomatoes",
    "job": "teacher|doctor|driver|engineer|farmer|nurse|lawyer|painter|baker|pilot|singer|writer|student|"
    "soldier|police "
    "officer|scientist|waiter|manager|carpenter|journalist",
}

_MANDARIN_TEMPLATES = """
{时间}我们去{地点}吧。
你好，我叫{人}，很高兴认识你。
请问{地点}在哪里？
{人}说{时间}要去{地点}。
我想吃{食物}，你呢？
{时间}的天气{天气}，记得带伞。
这个{东西}多少钱？
我的{东西}在{地点}。
{人}，你看见我的{东西}了吗？
{数}点钟我在{地点}等你。
今天是{月}月{数}号，星期{周}。
谢谢你的{东西}，我很喜欢。
对不起，我{时间}没有空。
他买了{数}个{东西}。
从这里到{地点}要{数}分钟。
{人}最喜欢{食物}和{食物}。
你会说中文吗？
欢迎来到{地点}。
请把{东西}放在桌子上。
我们一起{动词}吧。
{时间}我在家里{动词}。
老师让我们{动词}。
这本书很有意思。
早上好，{人}！
晚安，明天见。
没关系，慢慢来。
你为什么不{动词}？
外面在下雨，我们在家里{动词}吧。
电话号码是{数}{数}{数}{数}{数}{数}。
前面{数}百米，请左转。
列车即将到达{地点}，请准备下车。
小猫在{地点}睡觉。
祝你生日快乐，天天开心！
{人}是一位{职业}，在{地点}工作。
我觉得{食物}很好吃。
你{时间}几点起床？
这件事情非常重要。
{人}{时间}给我打了一个电话，说{地点}的{东西}坏了。
我们家离{地点}不远，走路只要{数}分钟。
你能不能帮我把{东西}拿过来？
我找了半天，也没有找到我的{东西}。
{人}从小就喜欢{动词}。
如果{时间}天气{天气}，我们就去{地点}{动词}。
虽然很累，但是{人}还在{地点}{动词}。
因为{时间}要早起，所以我想早点睡觉。
{人}的{东西}是{颜色}的，我的{东西}是{颜色}的。
我喜欢{颜色}的{东西}，不喜欢{颜色}的。
您好，请问您需要什么帮助？
您的订单已经发货，预计{时间}送到。
对不起，您拨打的电话暂时无人接听。
请输入您的密码，然后按确认键。
系统正在更新，请稍等{数}分钟。
电量不足，请及时充电。
文件已经保存到{地点}的电脑里了。
下一站是{地点}，请从左边的门下车。
从北京到上海的高铁大约需要{数}个小时。
这家店的{食物}特别有名，我们去尝一尝吧。
医生说我应该多喝水，多休息，少吃{食物}。
{人}在{地点}认识了一位{职业}。
我的梦想是当一名{职业}。
{职业}和{职业}都在{地点}等车。
春天来了，{地点}的花都开了。
夏天太热了，我只想吃{食物}。
秋天的{地点}非常漂亮。
冬天的早晨，外面一片白雪。
月亮很圆，星星很亮，夜晚很安静。
从前有一位{职业}，他住在{地点}旁边的小房子里。
小狗跟着{人}跑到了{地点}。
他一边{动词}，一边想着{时间}的事。
你听，外面好像有人在{动词}。
哎呀，我忘记带{东西}了！
真的吗？那太好了！
别着急，我马上就到{地点}。
不用谢，这是我应该做的。
请问现在几点了？现在{数}点{数}分。
这道题太难了，谁会做？
{人}用{数}年的时间写完了这本书。
我们应该保护环境，节约用水。
科学家发现了一种新的植物。
技术改变了我们的生活。
这个城市有{数}万人口，历史非常悠久。
会议{时间}{数}点开始，请大家准时参加。
根据天气预报，{时间}{天气}。
我不知道应该选择{东西}还是{东西}。
买{数}斤{食物}，再买{数}瓶{食物}。
一共是{数}块钱，请问怎么付款？
你的声音很好听，再说一遍吧。
收到好友从远方寄来的{东西}，我心里非常高兴。
{人}问我：你为什么不去{地点}？
我回答说：因为我{时间}要{动词}。
孩子们在{地点}高兴地{动词}。
奶奶做的{食物}最香了。
爷爷每天早上都去{地点}{动词}。
姐姐在{地点}买了一件{颜色}的衣服。
弟弟今年{数}岁，妹妹{数}岁。
他不但会{动词}，而且会{动词}。
慢一点，路上小心。
你好。
再见。
谢谢。
没问题！
对，就是这样。
好的，我知道了。
欢迎光临。
生日快乐！
""".strip().splitlines()

_MANDARIN_WORDS = {
    "时间": "今天|明天|昨天|早上|下午|晚上|周末|下个星期|现在|明年春天|中午",
    "地点": "公园|学校|图书馆|超市|车站|医院|北京|上海|机场|饭店|办公室|海边|山上|家里|银行|电影院",
    "人": "小明|王老师|李华|张伟|妈妈|爸爸|小红|刘先生|陈医生|我的朋友|他|她|我们",
    "食物": "米饭|面条|饺子|苹果|西瓜|鸡蛋|牛奶|包子|豆腐|鱼|咖啡|绿茶|水果",
    "东西": "手机|电脑|书|杯子|钥匙|衣服|雨伞|照片|礼物|词典|自行车|椅子|信|帽子|花",
    "天气": "很好|不错|很冷|有点热|会下雨|会下雪|非常晴朗",
    "数": "一|二|三|四|五|六|七|八|九|十|二十|三十五|一百",
    "月": "一|二|三|四|五|六|七|八|九|十|十一|十二",
    "周": "一|二|三|四|五|六|天",
    "动词": "看书|唱歌|跳舞|写字|做饭|打球|听音乐|学习|喝茶|看电影|散步|画画|休息",
    "颜色": "红色|蓝色|绿色|白色|黑色|黄色|灰色|紫色",
    "职业": "老师|医生|工程师|司机|作家|护士|记者",
}

_SLOT = re.compile(r"\{([^}]+)\}")


def _fill(template: str, words: dict[str, str], rng: random.Random) -> str:
    return _SLOT.sub(lambda match: rng.choice(words[match.group(1)].split("|")), template)


def english_sentences(count: int, seed: int) -> list[str]:
    """`count` draws, without repeats, capitalised as people write."""
    rng = random.Random(seed)
    drawn = {_capitalise(_fill(rng.choice(_ENGLISH_TEMPLATES), _ENGLISH_WORDS, rng)) for _ in range(count)}
    return sorted(drawn)


def mandarin_sentences(count: int, seed: int) -> list[str]:
    """`count` draws, without repeats."""
    rng = random.Random(seed)
    return sorted({_fill(rng.choice(_MANDARIN_TEMPLATES), _MANDARIN_WORDS, rng) for _ in range(count)})


def _capitalise(sentence: str) -> str:
    sentence = re.sub(r"\bi\b", "I", sentence)
    return sentence[0].upper() + sentence[1:]
