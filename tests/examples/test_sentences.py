"""The sentence classifier of the documentation: verdicts about alternatives are those of all sentences, one by one."""

from __future__ import annotations

import itertools

import pytest
import torch
from examples.sentences import GROUPS, WORDS, alternatives, sentence, train, words_of, write_reviews

import softhull


def test_the_text_is_what_it_says():
    reviews = write_reviews(50, seed=0)
    assert 0 < int(reviews.labels.sum()) < 50
    for i, good in enumerate(reviews.labels.tolist()):
        words = reviews.text(i).split()
        assert any(word in words for word in GROUPS[10 if good else 11])


@pytest.mark.slow
def test_verdicts_are_those_of_all_sentences():
    model = train(write_reviews(300, seed=1), steps=60)
    test = write_reviews(4, seed=2)
    network = softhull.from_torch(model, test.ids[:1], perturb="embeddings")
    with torch.no_grad():
        labels = model(test.ids).argmax(1)
    found = softhull.verify_robustness(network, test.ids, labels, alternatives(model, 2))
    group = {WORDS.index(word): [WORDS.index(other) for other in words] for words in GROUPS for word in words}
    for i, record in enumerate(found.records):
        own = test.ids[i].tolist()
        texts = []
        for a, b in itertools.combinations(range(len(own)), 2):
            for first, second in itertools.product(group[own[a]], group[own[b]]):
                texts.append([first if k == a else second if k == b else word for k, word in enumerate(own)])
        with torch.no_grad():
            kept = bool((model(torch.tensor(texts)).argmax(1) == labels[i]).all())
        assert record.verdict is (softhull.Verdict.CERTIFIED if kept else softhull.Verdict.FALSIFIED)
        if record.counterexample is not None:
            words = words_of(model, record.counterexample)
            assert sum(one != other for one, other in zip(words, own)) <= 2
            assert len(sentence(words).split()) == len(own)
