"""The topic of a conversation by rules: tables of words and patterns, for English and Korean.

Each word that a text has counts once, for its topic. `sure` words count two points and `hint` words one, twice as much
in what the user writes as in the answers. The topic with most points is that of the conversation if it has ENOUGH;
otherwise the conversation is about daily life. Words of daily life count too, against the other topics: a story about a
doctor is a story. Words stand for themselves and their plural in English, and in Korean for any text with them in it;
an underscore is a space.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from nanochat.chat import check_conversation, text_of
from nanochat.errors import UserError
from nanochat.log import Record

DAILY = "daily"
TOPICS = (DAILY, "code", "science", "medical", "mathematics")
SURE = 2  # points
HINT = 1
ASKED = 2  # times as many points for words of the user
ENOUGH = 4  # points of a topic
READ = 2000  # characters of the user, and as many of the answers
HANGUL = re.compile("[가-힣]")


@dataclass(frozen=True)
class Words:
    """What speaks for a topic: words, separated by spaces, and patterns of more than letters."""

    sure: str
    hint: str
    sure_patterns: tuple[str, ...] = ()
    hint_patterns: tuple[str, ...] = ()


WORDS = {
    "code": Words(
        sure="""
            python javascript typescript java c++ c# golang php html css sql mysql json xml regex api bash linux unix
            numpy pandas django react node.js git github docker debug debugging compiler algorithm pseudocode
            source_code code_snippet programming programmer software_engineer for_loop while_loop boolean recursion
            linked_list binary_tree binary_search hash_table data_structure object-oriented runtime syntax_error
            shell_script artificial_intelligence machine_learning deep_learning neural_network data_science
            computer_network computer_program chatbot gpt dataset classifier supervised_learning cloud_computing
            operating_system cybersecurity blockchain
            파이썬 자바스크립트 자바 코딩 프로그래밍 알고리즘 소스코드 코드를 코드로 코드_조각 함수를_작성
            프로그램을_작성 디버깅
            데이터베이스 정규표현식 자료구조 컴파일 리눅스 인공지능 인공_지능 머신러닝 기계_학습 딥러닝 신경망 챗봇
            데이터_과학 운영_체제 해킹 블록체인
        """,
        hint="""
            code function script program class variable array string query database server loop method parameter
            integer website webpage app software browser frontend backend framework library command terminal file
            developer computer input output implement ai internet network data
            코드 함수 프로그램 변수 배열 서버 웹사이트 소프트웨어 개발자 컴퓨터 클래스 문자열 입력 출력 구현 인터넷
            데이터
        """,
        sure_patterns=(
            r"```",
            r"\bdef \w+\(",
            r"\bfunction \w+\(",
            r"\bSELECT\b.+\bFROM\b",
            r"</?\w+>",
            r"#include",
            r"\bprint(?:ln)?\(",
            r"console\.log",
            r"\bimport \w+$",
            r"\breturn \w+;?$",
        ),
        hint_patterns=(r"\w+\(\w*\)", r"[{};]\s*$"),
    ),
    "mathematics": Words(
        sure="""
            algebra geometry calculus trigonometry derivative integral quadratic polynomial logarithm fraction
            denominator numerator hypotenuse theorem probability permutation combination matrix eigenvalue arithmetic
            square_root prime_number least_common_multiple greatest_common_divisor standard_deviation equation
            mathematics math percentage perimeter circumference how_many how_much_money their_sum surface_area
            수학 방정식 미분 적분 함수의_값 확률 삼각형 직사각형 소수인지 소수입니다 최대공약수 최소공배수 제곱근 분수
            평균을
            구하시오 구하세요 계산하 계산합 둘레 넓이 표면적 거리_공식
        """,
        hint="""
            calculate compute sum total average mean median number divide divided multiply multiplied subtract add
            minus plus times equal ratio percent area volume radius diameter angle triangle rectangle circle solve
            digit odd even integer dollars per twice half
            계산 합계 합을 합은 평균 숫자 더하 빼기 곱하 나누 비율 퍼센트 면적 부피 각도 개수 몇_개 몇_명 짝수 홀수 정수
        """,
        sure_patterns=(
            r"\d\s*[+*×÷^]\s*\d",
            r"\b[xy]\s*[=+-]\s*\w",
            r"\$[^$\n]*[\\^_=][^$\n]*\$",
            r"\\frac|\\sqrt|\\boxed",
            r"(?:\d+,\s*){3,}\d+",
        ),
        hint_patterns=(r"\d\s*[-/]\s*\d", r"=\s*-?\d", r"\d+%"),
    ),
    "medical": Words(
        sure="""
            disease symptom diagnosis diagnose patient medication medicine medicinal cancer diabetes vaccine vaccination
            antibiotic infection blood_pressure blood_sugar cholesterol surgery therapy pharmacist clinical asthma
            pneumonia hypertension stroke heart_attack heart_disease allergy obesity depression anxiety insomnia
            pregnancy tumor painkiller side_effect dosage vitamin calorie immune_system mental_health physician
            health healthy healthcare workout fitness nutrition nutritious herbal covid-19 autism
            질병 증상 진단 환자 치료 암에 암을 당뇨 백신 예방접종 항생제 감염 고혈압 콜레스테롤 수술 약물 복용 부작용
            우울증 불면증 임신 비타민 면역 의학 의료 의사 병원 건강 두통 감기 다이어트 자폐 약용 한의학 영양소 탈모
        """,
        hint="""
            doctor nurse hospital pain treatment diet exercise sleep stress virus blood heart
            brain bone muscle skin injury fever headache weight fat protein prevention risk drug pill fatigue trainer
            통증 운동 식단 영양 스트레스 바이러스 혈액 심장 근육 피부 부상 체중 지방 단백질 예방 불안 수면_부족 피로
        """,
    ),
    "science": Words(
        sure="""
            physics chemistry biology astronomy geology photosynthesis molecule atom electron proton neutron chemical
            gravity velocity acceleration thermodynamics quantum dna rna gene genetic chromosome mitochondria
            organism species ecosystem evolution planet galaxy solar_system telescope earthquake volcano tectonic
            greenhouse_gas global_warming climate renewable_energy carbon_dioxide oxygen hydrogen nitrogen
            periodic_table experiment microscope bacteria mammal reptile amphibian vertebrate nuclear
            mitosis meiosis nucleus chloroplast inheritance predator biodiversity biome lava mineral fossil_fuel
            electric_vehicle solar_panel spacecraft space_exploration astronaut fungus photon wavelength habitat
            wild_animal nervous_system digestive_system circulatory_system bloodstream lung energy-efficient
            sustainable eco-friendly temperature cell
            물리학 물리 화학 생물 천문학 지질학 광합성 분자 원자 전자기 중력 속도를 가속도 열역학 엔트로피 양자 유전자
            염색체
            생태계 진화 행성 은하 태양계 지진 화산 온실가스 지구_온난화 기후_변화 기후변화 기후 재생_에너지 이산화탄소
            산소 수소
            질소 실험 박테리아 포유류 파충류 양서류 핵융합 반도체 해수면 빙하 자전 공전 다중_우주 서식 동물의 식물의
            과학적 온도
        """,
        hint="""
            science scientist scientific energy water air light heat force mass pressure wave electric electricity
            magnetic metal acid plant animal fossil ocean weather environment environmental pollution engine machine
            robot technology sun moon earth star space rock soil liquid gas solid fish bird insect tree forest
            crop elephant tiger shark whale
            과학 에너지 압력 전기 자석 금속 식물 동물 화석 해양 날씨 환경 오염 엔진 기계 로봇 기술 태양 지구 우주 토양
            곤충
            물질 열대 바다
        """,
    ),
    DAILY: Words(
        sure="""
            story poem song lyric essay letter email movie film novel character restaurant recipe travel hotel trip
            birthday wedding girlfriend boyfriend friend love marketing slogan customer resume interview president king
            war history culture sentence grammar rewrite paraphrase tweet advertisement haiku joke campaign bio album
            ticket flight booking reservation apartment salon concert rental imagine_you_are you_are_a dialogue
            이야기 소설 노래 편지 이메일 영화 드라마 식당 요리법 레시피 여행 호텔 생일 결혼 남자친구 여자친구 친구
            사랑 짝사랑
            이별 마케팅 고객 자기소개서 면접 대통령 왕자 전쟁 역사 문화 문장 문법 광고 농담 한국사회 음운
        """,
        hint="""
            family mother father child school teacher student company manager team business job work music book game
            food cook dinner people city country language word name feel happy sad
            가족 엄마 아빠 아이 학교 선생님 학생 회사 음악 책을 책의 게임 음식 요리 저녁 사람 도시 나라 언어 단어 이름
            기분 행복
            슬픔
        """,
    ),
}


@lru_cache
def _signs(topic: str) -> tuple[tuple[int, str, re.Pattern[str]], ...]:
    """Return what counts for a topic: its points, a part in lower case that a text has to have, and the pattern."""
    words = WORDS[topic]
    found = []
    for points, listed, patterns in ((SURE, words.sure, words.sure_patterns), (HINT, words.hint, words.hint_patterns)):
        for word in listed.split():
            text = word.replace("_", " ")
            alone = text if HANGUL.search(text) else rf"(?<!\w){re.escape(text)}(?:s|es)?(?!\w)"
            found.append((points, text, alone))
        found += [(points, "", pattern) for pattern in patterns]
    return tuple((points, part, re.compile(pattern, re.IGNORECASE | re.MULTILINE)) for points, part, pattern in found)


def points_of(text: str, topic: str) -> int:
    """Return how much speaks for a topic in a text."""
    lower = text.lower()
    # Most words are not in a text, and a word is found much faster than its pattern.
    return sum(points for points, part, pattern in _signs(topic) if part in lower and pattern.search(text))


def topic_of(asked: str, answered: str) -> str:
    """Return the topic of what a user writes and what is answered."""
    asked, answered = asked[:READ], answered[:READ]
    points = {topic: ASKED * points_of(asked, topic) + points_of(answered, topic) for topic in TOPICS}
    best = max(TOPICS, key=points.__getitem__)  # the first of equals, and so daily first
    return best if points[best] >= ENOUGH else DAILY


def topic_of_row(row: Record) -> str:
    """Return the topic of a row of chats; daily for one that is malformed."""
    try:
        messages = check_conversation(row)["messages"]
    except UserError:
        return DAILY
    texts = {"user": "", "assistant": ""}
    for message in messages:
        if message["role"] in texts:
            texts[message["role"]] += f"{text_of(message)}\n"
    return topic_of(texts["user"], texts["assistant"])


def tagged(rows: Iterable[Record], split: bool) -> Iterator[Record]:
    """Give rows their topic: that of TOPICS which they have, or that of the rules. split: it ends the bucket's name."""
    for row in rows:
        topic = row.get("topic")
        if topic not in TOPICS:
            topic = topic_of_row(row)
        bucket = f"{row['bucket']}-{topic}" if split else row["bucket"]
        yield row | {"bucket": bucket, "topic": topic}
