"""A small world told in Chinese and English, whose true entropy is known.

The language is a probabilistic grammar without recursion, so all its sentences can be listed with their
probabilities. Each sentence has exactly one derivation; hence the probability of a text is the product of the choices
that made it, and a model's loss can be held against a floor instead of against a guess.

What is to be learned lies far apart: the weather decides where one wants to go, the product decides which
parts it has, the fruit its measure word, the first noun who does what to whom.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Literal, NamedTuple

import numpy as np

from tinygrad_tf.data.corpus import Corpus

Split = Literal["train", "val"]

# One rule a line: a name, then alternatives, each a weight and symbols; <name> is expanded, all else are words;
# "_" stands for a space inside or around a word. A line without "=" continues the rule above it.
GRAMMAR = """
sentence = 18 <去> | 18 <产品> | 14 <水果> | 10 <首都> | 14 <人>
    | 6 <go> | 6 <product> | 4 <fruit> | 4 <capital> | 6 <people>

去 = 3 <天> <好天> | 3 <天> <雨天> | 2 <天> <雪天> | 2 <天> <热天>
天 = 5 今天 | 3 明天 | 2 周末
好天 = 1 天气真好 ， <谁> 想去 <好天的地方> 。
雨天 = 1 会下大雨 ， <谁> 想去 <雨天的地方> 。
雪天 = 1 会下大雪 ， <谁> 想去 <雪天的地方> 。
热天 = 1 天气很热 ， <谁> 想去 <热天的地方> 。
谁 = 6 我 | 4 我们 | 3 孩子们 | 2 爷爷 | 2 她
好天的地方 = 40 公园 | 25 爬山 | 20 草原 | 15 动物园
雨天的地方 = 45 图书馆 | 30 电影院 | 25 博物馆
雪天的地方 = 60 滑雪场 | 40 泡温泉
热天的地方 = 50 游泳池 | 30 海边 | 20 商场

产品 = 4 苹果 <发布> <苹果的> 。 | 3 华为 <发布> <华为的> 。 | 3 小米 <发布> <小米的> 。
    | 3 索尼 <发布> <索尼的> 。 | 2 丰田 <发布> <丰田的> 。 | 2 本田 <发布> <本田的> 。
发布 = 6 发布了 | 4 推出了
苹果的 = 5 <手机> | 3 <电脑> | 2 <手表>
华为的 = 4 <手机> | 3 <手表> | 3 <汽车>
小米的 = 4 <手机> | 3 <电视> | 3 <汽车>
索尼的 = 4 <相机> | 3 <电视> | 3 <耳机>
丰田的 = 1 <汽车>
本田的 = 5 <汽车> | 5 <摩托>
款 = 5 新款 | 3 一款 | 2 便宜的
手机 = 1 <款> 手机 ，它的 <手机的>
电脑 = 1 <款> 电脑 ，它的 <电脑的>
手表 = 1 <款> 手表 ，它的 <手表的>
汽车 = 1 <款> 汽车 ，它的 <汽车的>
电视 = 1 <款> 电视 ，它的 <电视的>
相机 = 1 <款> 相机 ，它的 <相机的>
耳机 = 1 <款> 耳机 ，它的 <耳机的>
摩托 = 1 <款> 摩托 ，它的 <摩托的>
手机的 = 5 屏幕 很亮 | 3 信号 很强 | 2 电池 很小
电脑的 = 6 键盘 很轻 | 4 内存 很大
手表的 = 6 表带 很软 | 4 指针 很细
汽车的 = 4 引擎 很安静 | 4 座椅 很舒服 | 2 车灯 很亮
电视的 = 6 画面 很清楚 | 4 遥控器 很小
相机的 = 6 镜头 很清楚 | 4 快门 很快
耳机的 = 6 音质 很好 | 4 耳罩 很软
摩托的 = 6 油箱 很大 | 4 轮子 很宽

水果 = 5 苹果 <苹果如何> 。 | 4 葡萄 <葡萄如何> 。 | 3 西瓜 <西瓜如何> 。 | 3 香蕉 <香蕉如何> 。
苹果如何 = 5 <熟> ，它的 <苹果皮> | 5 <好吃> <家人> <买> 一个
葡萄如何 = 5 <熟> ，它的 <葡萄皮> | 5 <好吃> <家人> <买> 一串
西瓜如何 = 5 <熟> ，它的 <西瓜皮> | 5 <好吃> <家人> <买> 一块
香蕉如何 = 5 <熟> ，它的 <香蕉皮> | 5 <好吃> <家人> <买> 一根
熟 = 6 熟了 | 4 洗好了
好吃 = 5 很甜， | 3 好吃， | 2 不贵，
家人 = 4 奶奶 | 3 爸爸 | 3 妹妹
买 = 6 吃了 | 4 买了
苹果皮 = 6 果皮 红红的 | 4 果肉 脆脆的
葡萄皮 = 6 果皮 紫紫的 | 4 果肉 软软的
西瓜皮 = 6 果皮 绿绿的 | 4 果肉 沙沙的
香蕉皮 = 6 果皮 黄黄的 | 4 果肉 糯糯的

首都 = 3 巴黎 <是> 法国 的首都。 | 3 法国 <的首都> 巴黎 。 | 2 东京 <是> 日本 的首都。 | 2 日本 <的首都> 东京 。
    | 3 北京 <是> 中国 的首都。 | 3 中国 <的首都> 北京 。 | 2 伦敦 <是> 英国 的首都。 | 2 英国 <的首都> 伦敦 。
    | 2 罗马 <是> 意大利 的首都。 | 2 意大利 <的首都> 罗马 。 | 2 开罗 <是> 埃及 的首都。 | 2 埃及 <的首都> 开罗 。
是 = 6 是 | 4 就是
的首都 = 6 的首都是 | 4 的首都就是

人 = 3 医生 <怎样> <医生做> 。 | 3 患者 <怎样> <患者做> 。 | 3 老师 <怎样> <老师做> 。 | 3 学生 <怎样> <学生做> 。
    | 2 警察 <怎样> <警察做> 。 | 2 小偷 <怎样> <小偷做> 。 | 2 厨师 <怎样> <厨师做> 。 | 2 客人 <怎样> <客人做> 。
怎样 = 6 <直接> | 4 <常常> | 3 <每天>
直接 = 1 在认真地
常常 = 1 又开始
每天 = 1 每天都
医生做 = 7 治疗 患者 | 3 安慰 患者
患者做 = 6 感谢 医生 | 4 相信 医生
老师做 = 7 教导 学生 | 3 表扬 学生
学生做 = 6 请教 老师 | 4 尊敬 老师
警察做 = 7 追赶 小偷 | 3 审问 小偷
小偷做 = 6 躲避 警察 | 4 欺骗 警察
厨师做 = 7 招待 客人 | 3 等待 客人
客人做 = 6 称赞 厨师 | 4 催促 厨师

go = 3 <sunny> | 3 <rainy> | 2 <snowy>
sunny = 1 It_is_sunny <so> to_the <sunny-place> .
rainy = 1 It_is_rainy <so> to_the <rainy-place> .
snowy = 1 It_is_snowy <so> to_the <snowy-place> .
so = 4 _and_I_want_to_go_ | 3 _and_we_want_to_go_ | 3 _and_she_wants_to_go_
sunny-place = 45 _park | 30 _beach | 25 _zoo
rainy-place = 50 _library | 30 _museum | 20 _cinema
snowy-place = 60 _hill | 40 _sauna

product = 4 Apple <makes> <apple-product> . | 3 Sony <makes> <sony-product> . | 3 Honda <makes> <honda-product> .
makes = 6 _made_a | 4 _sells_a
apple-product = 6 _phone ,_it_has_a <phone-part> | 4 _laptop ,_it_has_a <laptop-part>
sony-product = 6 _camera ,_it_has_a <camera-part> | 4 _phone ,_it_has_a <phone-part>
honda-product = 6 _car ,_it_has_a <car-part> | 4 _bike ,_it_has_a <bike-part>
phone-part = 6 _bright_screen | 4 _small_battery
laptop-part = 6 _light_keyboard | 4 _big_memory
camera-part = 6 _sharp_lens | 4 _fast_shutter
car-part = 6 _quiet_engine | 4 _soft_seat
bike-part = 6 _big_tank | 4 _wide_wheel

fruit = 4 The_apple <is> <apple-is> . | 3 The_grape <is> <grape-is> . | 3 The_banana <is> <banana-is> .
is = 6 _is_ripe_and_its | 4 _is_clean_and_its
apple-is = 6 _skin_is _red | 4 _flesh_is _crisp
grape-is = 6 _skin_is _purple | 4 _flesh_is _soft
banana-is = 6 _skin_is _yellow | 4 _flesh_is _sweet

capital = 3 The_capital_of_France_is _Paris . | 3 Paris_is_the_capital_of _France .
    | 2 The_capital_of_Japan_is _Tokyo . | 2 Tokyo_is_the_capital_of _Japan .
    | 2 The_capital_of_Italy_is _Rome . | 2 Rome_is_the_capital_of _Italy .
    | 2 The_capital_of_Egypt_is _Cairo . | 2 Cairo_is_the_capital_of _Egypt .

people = 3 The_doctor <often> <doctor-does> . | 3 The_patient <often> <patient-does> .
    | 3 The_teacher <often> <teacher-does> . | 3 The_student <often> <student-does> .
often = 5 _often | 3 _always | 2 _gladly
doctor-does = 7 _treats_the _patient | 3 _comforts_the _patient
patient-does = 6 _thanks_the _doctor | 4 _trusts_the _doctor
teacher-does = 7 _guides_the _student | 3 _praises_the _student
student-does = 6 _asks_the _teacher | 4 _admires_the _teacher
"""

# Sentences with all the words of a line never occur in training, though each of the words does.
# Each line has so small a probability that training hardly shows it to be missing.
HELD_OUT = """
明天 天气真好 爷爷 公园
周末 会下大雨 孩子们 博物馆
今天 会下大雪 她 泡温泉
周末 天气很热 我们 海边
苹果 推出了 便宜的 手机 信号
华为 推出了 一款 汽车 座椅
小米 发布了 便宜的 电视 画面
索尼 推出了 一款 耳机 音质
葡萄 好吃， 妹妹 买了
西瓜 很甜， 爸爸 买了
医生 每天都 安慰
客人 又开始 催促
It_is_sunny _and_she_wants_to_go_ _zoo
Sony _sells_a _phone _small_battery
The_teacher _gladly _praises_the
"""


class Sentence(NamedTuple):
    """One sentence of the language: its text, its words, its probability, and whether training withholds it."""

    text: str
    words: tuple[str, ...]
    probability: float
    held_out: bool


@cache
def rules() -> dict[str, list[tuple[float, tuple[str, ...]]]]:
    """The grammar as data: name -> [(probability, symbols)]; the probabilities of a name sum to 1.

    Example:
        >>> rules()["发布"]
        [(0.6, ('发布了',)), (0.4, ('推出了',))]
    """
    table: dict[str, list[tuple[float, tuple[str, ...]]]] = {}
    name = ""
    for line in GRAMMAR.strip().splitlines():
        if "=" in line:
            name, _, line = (part.strip() for part in line.partition("="))
            if name in table:
                raise ValueError(f"toy-world's grammar defines <{name}> twice")
            table[name] = []
        for alternative in filter(None, (part.split() for part in line.split("|"))):
            table[name].append((float(alternative[0]), tuple(alternative[1:])))
    return {
        name: [(weight / sum(w for w, _ in options), symbols) for weight, symbols in options]
        for name, options in table.items()
    }


def derivations(symbols: Sequence[str] = ("<sentence>",)) -> Iterator[tuple[tuple[str, ...], float]]:
    """Every derivation from `symbols`: its words, and the product of the probabilities of its choices.

    Example:
        >>> list(derivations(["苹果", "<发布>"]))
        [(('苹果', '发布了'), 0.6), (('苹果', '推出了'), 0.4)]
    """
    if not symbols:
        yield (), 1.0
        return
    first, rest = symbols[0], symbols[1:]
    tails = list(derivations(rest))
    if first.startswith("<"):
        heads = [(words, p * q) for p, chosen in rules()[first[1:-1]] for words, q in derivations(chosen)]
    else:
        heads = [((first.replace("_", " "),), 1.0)]
    for head, p in heads:
        for tail, q in tails:
            yield head + tail, p * q


@cache
def sentences() -> tuple[Sentence, ...]:
    """The whole language: every sentence once, ordered by text.

    Example:
        >>> round(sum(s.probability for s in sentences()), 12)
        1.0
    """
    withheld = [{word.replace("_", " ") for word in line.split()} for line in HELD_OUT.strip().splitlines()]
    return tuple(
        sorted(
            Sentence("".join(words), words, p, any(combination <= set(words) for combination in withheld))
            for words, p in derivations()
        )
    )


@cache
def held_out_mass() -> float:
    """The probability that a sentence of the whole grammar is one that training withholds."""
    return math.fsum(s.probability for s in sentences() if s.held_out)


def log_probability(sentence: str, split: Split = "val") -> float:
    """log p(sentence | split), in nats; -inf for what the split cannot contain. The closing newline is certain (p = 1).

    Example:
        >>> log_probability("巴黎是法国的首都。") > log_probability("巴黎是日本的首都。")
        True
    """
    everything = sentences()
    at = bisect_left(everything, sentence, key=lambda s: s.text)
    if at == len(everything) or everything[at].text != sentence or (split == "train" and everything[at].held_out):
        return -math.inf
    total = 1.0 - held_out_mass() if split == "train" else 1.0
    return math.log(everything[at].probability / total)


def entropy_per_character(split: Split = "val") -> float:
    """E[−log p of a sentence] / E[its length with the newline], in nats: what `floor` tends to as texts grow."""
    kept = [s for s in sentences() if split == "val" or not s.held_out]
    nats = math.fsum(-s.probability * log_probability(s.text, split) for s in kept)
    return nats / math.fsum(s.probability * (len(s.text) + 1) for s in kept)


def toy_world(seed: int = 0, train_characters: int = 2_000_000, val_characters: int = 30_000) -> Corpus:
    """Draw a training and a validation text from the toy world; every sentence ends with a newline.

    Two distributions over the sentences s of one grammar p, one for each split:

        train:       p(s | s contains no held-out combination) = p(s) / (1 − ε) or 0
        validation:  p(s), the whole grammar, held-out combinations included at their natural rate

    where ε = `held_out_mass()`, about one percent. The floor is the exact mean −log p per character of this text:

        floor = Σ_s −log p(s | validation) / Σ_s (len(s) + 1)        (nats; the + 1 is the newline)

    over its sentences s, each of them independent of the others. It is the loss of a model that knows the grammar. One
    that learned the training distribution to the letter, and gave held-out combinations nothing, would pay for them
    without end; one that takes them for as likely as their parts suggest comes close to the floor, since they are so
    rare that training hardly shows that they were withheld.

    Arguments:
        seed: the same seed gives the same texts, on every machine.
        train_characters, val_characters: how long the texts are, at least; whole sentences only.

    Raises ValueError for a length below 1.

    Example:
        >>> corpus = toy_world(seed=0, train_characters=1000, val_characters=1000)
        >>> corpus.sentence_starts, 0.1 < corpus.floor < 0.6, corpus.train.endswith("\\n")
        (True, True, True)
    """
    train = _draw("train", seed, train_characters)
    val = _draw("val", seed, val_characters)
    nats = math.fsum(-log_probability(line) for line in val)
    floor = nats / sum(len(line) + 1 for line in val)
    return Corpus("toy-world", _lines(train), _lines(val), floor=floor, sentence_starts=True)


def _lines(texts: list[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


def _draw(split: Split, seed: int, characters: int) -> list[str]:
    """Independent sentences of `split`, until they have `characters` characters."""
    if characters < 1:
        raise ValueError(f"toy_world: a text must have at least 1 character, got {characters}")
    everything = [s for s in sentences() if split == "val" or not s.held_out]
    cumulative = np.cumsum([s.probability for s in everything])
    rng = np.random.default_rng([seed, ("train", "val").index(split)])
    drawn: list[str] = []
    length = 0
    while length < characters:
        for at in np.searchsorted(cumulative, rng.random(1024) * cumulative[-1], side="right"):
            text = everything[min(int(at), len(everything) - 1)].text
            drawn.append(text)
            length += len(text) + 1
            if length >= characters:
                break
    return drawn


def _matching(prefix: str, split: Split) -> tuple[str, list[Sentence]]:
    """The unfinished last line of `prefix`, and the sentences that begin with it."""
    line = prefix.rpartition("\n")[2]
    kept = [s for s in sentences() if s.text.startswith(line) and not (split == "train" and s.held_out)]
    if not kept:
        raise ValueError(f"toy-world: no sentence begins with {line!r}")
    return line, kept


def _normalised(weights: dict[str, float]) -> dict[str, float]:
    total = math.fsum(weights.values())
    return {key: weights[key] / total for key in sorted(weights, key=lambda k: (-weights[k], k))}


def continuations(prefix: str, split: Split = "val") -> dict[str, float]:
    """p(next word | prefix), likeliest first: a word of the grammar, or the rest of a word that `prefix` has begun.

    Only the last line of `prefix` matters, as sentences are independent. After a whole sentence the newline is certain.
    Raises ValueError if no sentence begins with it.

    Example:
        >>> {word: round(p, 2) for word, p in continuations("今天天气真好，我想去").items()}
        {'公园': 0.4, '爬山': 0.25, '草原': 0.2, '动物园': 0.15}
        >>> list(continuations("今天天气真好，我想去公"))
        ['园']
    """
    line, kept = _matching(prefix, split)
    weights: dict[str, float] = {}
    for sentence in kept:
        end = 0
        rest = "\n"
        for word in sentence.words:
            end += len(word)
            if end > len(line):
                rest = word[len(word) - (end - len(line)) :]
                break
        weights[rest] = weights.get(rest, 0.0) + sentence.probability
    return _normalised(weights)


def next_character_probabilities(prefix: str, split: Split = "val") -> dict[str, float]:
    """p(next character | prefix), likeliest first; otherwise as `continuations`.

    Example:
        >>> next_character_probabilities("巴黎是")
        {'法': 1.0}
    """
    line, kept = _matching(prefix, split)
    weights: dict[str, float] = {}
    for sentence in kept:
        following = (sentence.text + "\n")[len(line)]
        weights[following] = weights.get(following, 0.0) + sentence.probability
    return _normalised(weights)
