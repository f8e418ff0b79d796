"""The toy world: unambiguous, its floor exact, its tasks long-range."""

import math
from collections import Counter, defaultdict

import pytest

from tinygrad_tf.data import (
    continuations,
    entropy_per_character,
    held_out_mass,
    log_probability,
    next_character_probabilities,
    sentences,
    toy_world,
)
from tinygrad_tf.data.toy_world import HELD_OUT, derivations, rules

RUNNING_EXAMPLE = "今天天气真好，我想去"


def n_gram_loss(train: str, val: str, order: int) -> float:
    """Loss per character of a Witten-Bell interpolated n-gram model; sentences are scored from their newline on."""
    counts: list[dict[str, Counter[str]]] = [defaultdict(Counter) for _ in range(order)]

    def positions(text: str) -> list[tuple[str, str]]:
        padded = [("\n" * (order - 1) + line + "\n") for line in text.splitlines()]
        return [(line[i - order + 1 : i], line[i]) for line in padded for i in range(order - 1, len(line))]

    for context, character in positions(train):
        for k in range(order):
            counts[k][context[order - 1 - k :]][character] += 1
    nats = []
    uniform = 1 / len(set(train))
    for context, character in positions(val):
        p = uniform
        for k in range(order):
            seen = counts[k].get(context[order - 1 - k :])
            if seen:
                p = (seen[character] + len(seen) * p) / (seen.total() + len(seen))
        nats.append(-math.log(p))
    return math.fsum(nats) / len(nats)


def test_every_sentence_has_exactly_one_derivation() -> None:
    texts = Counter("".join(words) for words, _ in derivations())
    assert max(texts.values()) == 1
    assert len(texts) == len(sentences())
    assert math.isclose(math.fsum(p for _, p in derivations()), 1.0, rel_tol=1e-12)
    assert all(p > 0 for _, p in derivations())


def test_the_grammar_is_well_formed() -> None:
    used = {s for options in rules().values() for _, symbols in options for s in symbols if s.startswith("<")}
    assert {f"<{name}>" for name in rules()} == used | {"<sentence>"}
    for name, options in rules().items():
        assert math.isclose(sum(p for p, _ in options), 1.0), name
        assert len(set(symbols for _, symbols in options)) == len(options), name


def test_sentences_fit_the_default_window_and_end_properly() -> None:
    for sentence in sentences():
        assert len(sentence.text) < 48
        assert "\n" not in sentence.text and sentence.text == "".join(sentence.words)
        assert sentence.text[-1] in "。."


def test_the_sentences_of_the_world() -> None:
    texts = {sentence.text for sentence in sentences()}
    for text in (
        "今天天气真好，我想去公园。",
        "苹果发布了新款手机，它的屏幕很亮。",
        "巴黎是法国的首都。",
        "Paris is the capital of France.",
        "苹果熟了，它的果皮红红的。",
    ):
        assert text in texts
    assert all(text.endswith(("。", ".")) for text in texts)
    assert "巴黎是日本的首都。" not in texts and not any("手机" in text and "引擎" in text for text in texts)
    assert not any("医生" in text.partition("治疗")[2] for text in texts if "治疗" in text)


def test_the_running_example() -> None:
    after = continuations(RUNNING_EXAMPLE)
    assert next(iter(after)) == "公园" and 0.3 < after["公园"] < 0.5
    assert max(after.values()) == after["公园"] and math.isclose(sum(after.values()), 1.0)
    assert continuations("以前的句子。\n" + RUNNING_EXAMPLE) == after
    assert next(iter(continuations(RUNNING_EXAMPLE, "train"))) == "公园"
    rain = continuations("今天会下大雨，我想去")
    assert "公园" not in rain and not set(rain) & set(after)


def test_continuations_agree_with_the_characters_and_the_texts() -> None:
    for prefix in ("", "苹果", "苹果发布了", "It is sunny and", RUNNING_EXAMPLE, "华为推出了一款汽车，它的"):
        for split in ("train", "val"):
            first: dict[str, float] = defaultdict(float)
            for word, p in continuations(prefix, split).items():
                first[word[0]] += p
            characters = next_character_probabilities(prefix, split)
            assert first == pytest.approx(characters)
    whole = "巴黎是法国的首都。"
    assert continuations(whole) == next_character_probabilities(whole) == {"\n": 1.0}
    assert list(continuations("今天天气真好，我想去动")) == ["物园"]
    with pytest.raises(ValueError, match="no sentence begins"):
        continuations("法国的首都是东京")
    # The chain rule: the characters' probabilities multiply to the sentence's.
    for sentence in sentences()[::37]:
        text = sentence.text + "\n"
        nats = sum(math.log(next_character_probabilities(text[:i])[text[i]]) for i in range(len(text)))
        assert math.isclose(nats, log_probability(sentence.text), rel_tol=1e-9)


def test_the_floor_by_enumeration() -> None:
    corpus = toy_world(seed=3, train_characters=20_000, val_characters=20_000)
    table = {"".join(words): p for words, p in derivations()}
    lines = corpus.val.splitlines()
    expected = math.fsum(-math.log(table[line]) for line in lines) / len(corpus.val)
    assert corpus.floor == pytest.approx(expected, rel=1e-12)
    assert len(corpus.val) == sum(len(line) + 1 for line in lines)
    # The same by the other road: characters, one after another.
    by_characters = math.fsum(
        -math.log(next_character_probabilities(f"{s}"[:i])[f"{s}\n"[i]]) for s in lines[:100] for i in range(len(s) + 1)
    )
    assert by_characters == pytest.approx(math.fsum(-log_probability(s) for s in lines[:100]))


def test_the_floor_of_a_long_text_is_the_entropy() -> None:
    floor = toy_world(seed=1, train_characters=10, val_characters=400_000).floor
    assert floor == pytest.approx(entropy_per_character(), rel=0.01)


def test_held_out_combinations_are_rare_and_only_in_validation() -> None:
    held_out = {sentence.text for sentence in sentences() if sentence.held_out}
    assert 0.005 < held_out_mass() < 0.02
    corpus = toy_world()
    assert not held_out & set(corpus.train.splitlines())
    seen = [line for line in corpus.val.splitlines() if line in held_out]
    assert 0.3 < len(seen) / len(corpus.val.splitlines()) / held_out_mass() < 3
    assert all(log_probability(text, "train") == -math.inf for text in held_out)
    kept = [s for s in sentences() if not s.held_out]
    assert math.fsum(math.exp(log_probability(s.text, "train")) for s in kept) == pytest.approx(1.0)
    for line in HELD_OUT.strip().splitlines():
        combination = {word.replace("_", " ") for word in line.split()}
        assert any(combination <= set(s.words) for s in sentences()), line
        for word in combination:
            assert any(word in s.words for s in kept), (line, word)
    assert set("".join(s.text for s in sentences())) <= set(corpus.train)


def test_the_texts_follow_the_grammar() -> None:
    corpus = toy_world()
    assert 2_000_000 <= len(corpus.train) < 2_000_060 and corpus.train.endswith("\n") and corpus.sentence_starts
    lines = Counter(corpus.train.splitlines())
    n = lines.total()
    for sentence in sentences():
        expected = n * math.exp(log_probability(sentence.text, "train"))
        assert abs(lines[sentence.text] - expected) <= 6 * math.sqrt(expected) + 1e-9


def test_a_trigram_model_stays_well_above_the_floor() -> None:
    corpus = toy_world()
    assert corpus.floor is not None
    assert n_gram_loss(corpus.train, corpus.val, 3) > 1.25 * corpus.floor


def test_the_floor_is_within_reach_from_the_training_text() -> None:
    """Counting the training text's sentences, held-out ones as rare as the unseen, comes within 3 % of the floor."""
    corpus = toy_world()
    assert corpus.floor is not None
    counts = Counter(corpus.train.splitlines())
    total = counts.total() + 0.5 * len(sentences())
    nats = -math.fsum(math.log((counts[line] + 0.5) / total) for line in corpus.val.splitlines())
    assert corpus.floor < nats / len(corpus.val) < 1.05 * corpus.floor


def test_same_seed_same_texts() -> None:
    assert toy_world(5, 3000, 3000) == toy_world(5, 3000, 3000) != toy_world(6, 3000, 3000)
    with pytest.raises(ValueError, match="at least 1"):
        toy_world(0, 0, 10)
