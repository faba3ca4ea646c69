"""Lines of text in many scripts, made by rule: what two tokenizers must agree on before one stands for the other."""

import random
from collections.abc import Iterator

LINES = 12_000
# The first sentence of the Universal Declaration of Human Rights, or near it: real words of many languages.
SENTENCES = (
    "All human beings are born free and equal in dignity and rights.",
    "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "Todos los seres humanos nacen libres e iguales en dignidad y derechos; ¿no?",
    "Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti.",
    "Todos os seres humanos nascem livres e iguais em dignidade e em direitos.",
    "Alla människor är födda fria och lika i värde och rättigheter.",
    "Kaikki ihmiset syntyvät vapaina ja tasavertaisina arvoltaan ja oikeuksiltaan.",
    "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.",
    "Všichni lidé rodí se svobodní a sobě rovní co do důstojnosti a práv.",
    "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. IĞDIR'ın",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền.",
    "Все люди рождаются свободными и равными в своём достоинстве и правах.",
    "Всі люди народжуються вільними і рівними у своїй гідності та правах, п'ять.",
    "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց արժանապատվությամբ ու իրավունքներով։",
    "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით.",
    "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق.",
    "تمام افراد بشر آزاد به دنیا می‌آیند و از لحاظ حیثیت و حقوق با هم برابرند.",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে।",
    "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்.",
    "మానవులందరూ స్వేచ్ఛతోను, గౌరవం, హక్కులలో సమానతతోను జన్మించారు.",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "သူတိုင်းသည် တူညီလွတ်လပ်သော ဂုဏ်သိက္ခာဖြင့် မွေးဖွားလာသူများဖြစ်သည်။",
    "ሰው ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው።",
    "人人生而自由,在尊严和权利上一律平等。",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "Бүх хүмүүс төрөхдөө эрх чөлөөтэй, адилхан нэр төртэй, ижил эрхтэй байдаг.",
    "Watu wote wamezaliwa huru, hadhi na haki zao ni sawa. Ng'ombe!",
)
SCRIPTS = (  # first and last letter of stretches that have had them for long
    *((0x41, 0x5A), (0x61, 0x7A), (0xC0, 0xD6), (0x100, 0x17E), (0x180, 0x24F), (0x3B1, 0x3C9), (0x410, 0x44F)),
    *((0x561, 0x586), (0x5D0, 0x5EA), (0x620, 0x64A), (0x710, 0x72F), (0x905, 0x939), (0x985, 0x98C), (0xB85, 0xB8A)),
    *((0xC05, 0xC0C), (0xE01, 0xE30), (0xE81, 0xE82), (0xF40, 0xF47), (0x1000, 0x102A), (0x10D0, 0x10F0)),
    *((0x1200, 0x1248), (0x13A0, 0x13F4), (0x1780, 0x17B3), (0x1820, 0x1842), (0x3041, 0x3096), (0x30A1, 0x30FA)),
    *((0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0xFF21, 0xFF3A), (0x10400, 0x1044F), (0x1D400, 0x1D454), (0x20000, 0x2A6D6)),
)
OTHERS = (  # no letters: marks, signs, controls, private use
    *((0x1, 0x1F), (0x21, 0x2F), (0x3A, 0x40), (0x7F, 0x9F), (0xA1, 0xA9), (0x300, 0x36F), (0x93E, 0x94D)),
    *((0x2010, 0x2027), (0x2030, 0x205E), (0x20A0, 0x20BF), (0x2190, 0x23FA), (0x2500, 0x27BF), (0x3001, 0x3003)),
    *((0xE000, 0xE0FF), (0xFE00, 0xFE0F), (0xFF01, 0xFF0F), (0x1F300, 0x1F64F), (0x1F680, 0x1F6C5), (0xE0020, 0xE007F)),
)
DIGITS = "0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３４５６７８９", "²³¹½¾⅓ⅣⅫ①⑩㉑", "𝟘𝟙𝟚𝟛"
BLANKS = (
    " ",
    "  ",
    "    ",
    "\t",
    "\t\t",
    "\n",
    "\n\n",
    "\r\n",
    " \n ",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u200b",
    "\u0085",
    "\v",
)
EMOJI = "😀", "👍🏽", "👩‍💻", "👨‍👩‍👧‍👦", "🇰🇷", "🇩🇪🇫🇷", "❤️", "☎️", "1️⃣", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🫠"
CONTRACTIONS = "'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'RE", "'Ll", "'vE", "’s", "''s", "'x", "'"
CODE = (
    "def f(x: int = 0) -> str:\n    return f'{x:>8}'\n",
    "for (int i = 0; i < 10; ++i) { a[i] += b[i] * 0x1F; }  // done\r\n",
    '{"key": [1, 2.5e-10, null, true], "path": "C:\\\\dir\\\\file"}',
    '<a href="https://example.org/?q=1&r=%20#top">x</a>',
    "SELECT * FROM t WHERE id != 42 AND name LIKE '%o''k%';",
    "$x=${y:-z}; ls -la | grep '^d' >> out.txt 2>&1 && echo $?",
    "\\frac{1}{2} \\sum_{i=1}^{n} x_i^2 \\le \\infty",
    "_private__name CamelCaseWord snake_case_word kebab-case-word HTTPServer2",
)


def lines(names: tuple[str, ...] = (), count: int = LINES) -> Iterator[str]:
    """names: what stands for something else where it is no text, such as special tokens; it occurs as text."""
    dice = random.Random(8)
    makers = (_sentence, _letters, _numbers, _signs, _code, _anything)
    for number in range(count):
        line = makers[number % len(makers)](dice)
        yield line + dice.choice(names) + dice.choice(BLANKS) + line[:9] if names and number % 8 == 0 else line


def _character(dice: random.Random, ranges: tuple[tuple[int, int], ...]) -> str:
    return chr(dice.randint(*dice.choice(ranges)))


def _blank(dice: random.Random) -> str:
    return " " if dice.random() < 0.7 else dice.choice(BLANKS)


def _sentence(dice: random.Random) -> str:
    """Words of one language, cut anywhere, some written large; now and then a contraction behind one."""
    words = dice.choice(SENTENCES).split(" ")
    words = dice.sample(words, len(words))
    words[0] = words[0].upper() if dice.random() < 0.3 else words[0][dice.randrange(len(words[0])) :]
    ends = ["", "", "", "", dice.choice(CONTRACTIONS)]
    return "".join(word + dice.choice(ends) + _blank(dice) for word in words)


def _letters(dice: random.Random) -> str:
    """Words of one script each."""
    words = []
    for _ in range(dice.randint(1, 8)):
        script = (dice.choice(SCRIPTS),)
        words.append("".join(_character(dice, script) for _ in range(dice.randint(1, 9))) + _blank(dice))
    return "".join(words)


def _numbers(dice: random.Random) -> str:
    parts = []
    for _ in range(dice.randint(1, 8)):
        digits = dice.choice(DIGITS) if dice.random() < 0.4 else DIGITS[0]
        parts.append("".join(dice.choice(digits) for _ in range(dice.randint(1, 12))))
        parts.append(dice.choice(("", ".", ",", "-", "/", "x", "e+", "%", " + ", " = ", "$", "°", _blank(dice))))
    return "".join(parts)


def _signs(dice: random.Random) -> str:
    parts = []
    for _ in range(dice.randint(1, 6)):
        sign = dice.choice(EMOJI) if dice.random() < 0.5 else _character(dice, OTHERS)
        parts.append(sign * dice.choice((1, 1, 1, 2, 3, 40)) + _blank(dice))
    return "".join(parts)


def _code(dice: random.Random) -> str:
    line = dice.choice(CODE)
    begin = dice.randrange(len(line) // 2)
    return dice.choice(BLANKS) * dice.randint(0, 9) + line[begin : begin + dice.randint(5, len(line))]


def _anything(dice: random.Random) -> str:
    """All of it, sign by sign."""
    return "".join(
        _character(dice, SCRIPTS + OTHERS) if dice.random() < 0.5 else dice.choice((*BLANKS, *CONTRACTIONS, *"a1.Zß"))
        for _ in range(dice.randint(0, 40))
    )
