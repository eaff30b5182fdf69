"""Certified scores hold: against attacks, against exhaustive enumeration, for every score and method."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch

from softhull.attack.score import ScoreAttack
from softhull.branch.loop import Search
from softhull.deadlines import interrupt
from softhull.errors import InvalidInput, ModelError
from softhull.graph.ops.dense import Dense
from softhull.propagate.methods import Branch
from softhull.regions import Perturbation
from softhull.solve.dual import Dual
from softhull.verify.scores import SCORES, AffinePiece, Confidence, Score
from softhull.verify.uncertainty import verify_uncertainty

from ..solve.ensembles import ACTIVATIONS, random_graph
from . import pieces

QUICK = ScoreAttack(steps=15, restarts=2)


def ensemble(seed, networks=2, **kind):
    generator = torch.Generator().manual_seed(seed)
    return [random_graph(generator, **kind) for _ in range(networks)], generator


def inside(record, worst_when):
    ordered = (record.clean, record.attack, record.bound)
    ordered = ordered if worst_when == "high" else ordered[::-1]
    return ordered[0] <= ordered[1] + 1e-12 and ordered[1] <= ordered[2] + 1e-12


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("bound", ["all", "er/lse", "lin/lin"])
def test_the_bracket_is_ordered_for_every_score(score, bound):
    graphs, generator = ensemble(1, classes=4)
    x = torch.rand(3, 4, generator=generator, dtype=torch.float64)
    result = verify_uncertainty(
        graphs, x, [0, 1, 3], Perturbation(0.1, clip=(0, 1)), score, Dual(steps=40), bound, attack=QUICK
    )
    assert len(result) == 3
    assert all(inside(record, SCORES[score].worst_when) for record in result.records)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:eps =:softhull.errors.InputWarning")  # regions beyond the unit box are meant
def test_never_below_the_attack_on_random_ensembles():
    """4 ensembles, 24 inputs and 6 scores: 576 pairs of instance and score; SOFTHULL_SEED tries other ones."""
    seed = int(os.environ.get("SOFTHULL_SEED", "1499835471"))
    draw = np.random.default_rng(seed)
    for i in range(4):
        classes = int(draw.integers(2, 6))
        graphs, generator = ensemble(
            int(draw.integers(2**31)),
            int(draw.integers(1, 4)),
            hidden=tuple(int(n) for n in draw.integers(2, 8, draw.integers(1, 4))),
            classes=classes,
            activation=str(draw.choice(list(ACTIVATIONS))),
            scale=float(10 ** draw.uniform(-0.5, 1.2)),
        )
        x = torch.rand(24, 4, generator=generator, dtype=torch.float64)
        y = torch.randint(classes, (24,), generator=generator)
        region = Perturbation(float(10 ** draw.uniform(-3, 0.3)), norm=float(draw.choice([1, 2, math.inf])))
        bound = ("er/lse", "lse*/lse", "all", "lin/lin")[i]
        for score in SCORES:
            result = verify_uncertainty(graphs, x, y, region, score, Dual(steps=10), bound, attack=QUICK)
            assert all(inside(record, SCORES[score].worst_when) for record in result.records), (seed, i, score)


def upper_end(score, label):
    """The largest badness over a box of distributions: what ``pieces.worst`` needs, written out by hand."""
    rest = [k for k in range(3) if k != label]
    return {
        "nll": lambda least, most: -math.log(least[label]),
        "error": lambda least, most: 1 - least[label],
        "brier": lambda least, most: (1 - least[label]) ** 2 + (most[rest] ** 2).sum(),
        "confidence": lambda least, most: most.max(),
        "margin": lambda least, most: most[rest].max() - least[label],
    }[score]


@pytest.mark.parametrize("seed", range(2))
def test_enumerating_all_rectifier_patterns_finds_nothing_worse(seed):
    """Over every linear piece of both networks the worst score is known to within 1e-3; no bound lies below it."""
    networks, hidden = ((1, (4,)), (2, (3,)), (2, (3, 2)), (3, (3,)))[seed]
    graphs, generator = ensemble(seed, networks, inputs=2, hidden=hidden, classes=3, scale=2.0)
    x = torch.rand(1, 2, generator=generator, dtype=torch.float64)
    lower, upper = x[0].numpy() - 0.3, x[0].numpy() + 0.3
    dense = [[node.operator for node in graph.nodes if isinstance(node.operator, Dense)] for graph in graphs]
    layers = [[(d.matrix.numpy().T, d.bias.numpy()) for d in network if d.bias is not None] for network in dense]
    found = pieces.pieces(layers, lower, upper)
    assert sum(pieces.area(piece.corners) for piece in found) == pytest.approx(0.36)
    for score in ("nll", "error", "brier", "confidence", "margin"):
        rule = SCORES[score]

        def badness(p, rule=rule):
            return rule.badness(torch.from_numpy(p), torch.zeros(len(p), dtype=torch.long)).numpy()

        least, most = pieces.worst(found, badness, upper_end(score, 0), 1e-3)
        sign = 1 if rule.worst_when == "high" else -1
        for method in (Dual(steps=60), "lp"):
            result = verify_uncertainty(graphs, x, [0], Perturbation(0.3), score, method, attack=QUICK)
            assert least <= sign * result[0].bound + 1e-12, (score, method)
            assert sign * result[0].attack <= most + 1e-12, (score, method)


def test_separate_inputs_are_never_tighter_than_a_shared_one():
    graphs, generator = ensemble(5, 3)
    x = torch.rand(4, 4, generator=generator, dtype=torch.float64)
    asked = (graphs, x, [0, 1, 2, 0], Perturbation(0.1), "brier", "lp", "er/lse")
    shared, separate = (verify_uncertainty(*asked, separate=one, attack=QUICK) for one in (False, True))
    assert (shared.column("bound") <= separate.column("bound") + 1e-6).all()
    assert separate.column("bound").mean() > shared.column("bound").mean()


def test_a_single_network_is_an_ensemble_of_one():
    (graph,), generator = ensemble(6, 1)
    x = torch.rand(2, 4, generator=generator, dtype=torch.float64)
    alone, listed = (
        verify_uncertainty(g, x, [0, 1], Perturbation(0.05), method=Dual(steps=20)) for g in (graph, [graph])
    )
    np.testing.assert_array_equal(alone.column("bound"), listed.column("bound"))


def test_no_perturbation_leaves_the_clean_score():
    graphs, generator = ensemble(7)
    x = torch.rand(2, 4, generator=generator, dtype=torch.float64)
    for score in SCORES:
        result = verify_uncertainty(graphs, x, [0, 1], Perturbation(0.0), score, Dual(steps=5), attack=QUICK)
        np.testing.assert_allclose(result.column("bound"), result.column("clean"), atol=1e-6)


def test_a_time_limit_still_gives_bounds_and_says_so():
    graphs, generator = ensemble(8)
    x = torch.rand(3, 4, generator=generator, dtype=torch.float64)
    result = verify_uncertainty(graphs, x, [0, 1, 2], Perturbation(0.1), "nll", "lp", timeout=0.0)
    assert all(inside(record, "high") and "time limit" in record.message for record in result.records)
    assert "not solved to the end" in str(result)


class SecondClass(Score):
    """A score of a user: the probability of class 1."""

    name = "second"

    def value(self, p, label):
        return p[:, 1]

    def pieces(self, label, least, most):
        return [
            AffinePiece(torch.eye(least.shape[1], dtype=least.dtype)[1].expand_as(least), least.new_zeros(len(label)))
        ]


def test_a_score_of_your_own():
    graphs, generator = ensemble(9)
    x = torch.rand(2, 4, generator=generator, dtype=torch.float64)
    mine, named = (
        verify_uncertainty(graphs, x, [0, 1], Perturbation(0.1), score, Dual(steps=20), attack=QUICK)
        for score in (SecondClass(), "confidence:1")
    )
    np.testing.assert_allclose(mine.column("bound"), named.column("bound"))


def test_the_result_as_plain_data():
    graphs, generator = ensemble(10)
    x = torch.rand(2, 4, generator=generator, dtype=torch.float64)
    plain = verify_uncertainty(graphs, x, [0, 1], Perturbation(0.1), attack=QUICK).to_dict()
    assert {"bound", "attack", "clean", "cpu_seconds"} <= set(plain["summary"])
    fields = {"index", "label", "verdict", "bound", "attack", "clean"}
    fields |= {"predicted", "new_class", "cpu_seconds", "seconds"}
    assert [set(instance) for instance in plain["instances"]] == [fields] * 2


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"label": [0, 3]}, InvalidInput, "label 3 of instance 1 is out of range; the networks have classes 0 to 2"),
        ({"label": [-1, 0]}, InvalidInput, "label -1 of instance 0 is out of range"),
        ({"label": [0.5, 0.0]}, InvalidInput, "whole-number label"),
        ({"label": [0]}, InvalidInput, "2 inputs but 1 labels"),
        ({"x": torch.rand(2, 5)}, InvalidInput, "does not fit the network's input"),
        ({"x": torch.full((2, 4), torch.nan)}, InvalidInput, "not a finite number"),
        ({"x": torch.full((2, 4), 1.5)}, InvalidInput, "outside the clip range"),
        ({"score": "likelihood"}, InvalidInput, "unknown score 'likelihood'; choose nll"),
        ({"score": "confidence:x"}, InvalidInput, "unknown score 'confidence:x'"),
        ({"score": "confidence:7"}, InvalidInput, "there are 3 classes"),
        ({"timeout": math.nan}, InvalidInput, "timeout must be a number"),
        ({"timeout": -1.0}, InvalidInput, "timeout must be a number"),
        ({"score": Confidence(of=7)}, InvalidInput, "there are 3 classes"),
        ({"method": "magic"}, InvalidInput, "choose auto, linear, second-order, dual, lp, conic or branch"),
        ({"bound": "lse*"}, InvalidInput, "no upper bound"),
        ({"networks": []}, ModelError, "at least one network"),
    ],
)
def test_bad_questions_are_answered_in_one_line(change, error, message):
    graphs, generator = ensemble(11)
    asked = {"networks": graphs, "x": torch.rand(2, 4, generator=generator), "label": [0, 1]}
    with pytest.raises(error, match=message) as raised:
        verify_uncertainty(**(asked | {"perturbation": Perturbation(0.1, clip=(0, 1))} | change))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("eps", [-0.1, math.nan, math.inf])
def test_radii_that_are_none_are_refused(eps):
    with pytest.raises(InvalidInput, match="eps"):
        Perturbation(eps)


def test_what_was_done_when_an_interrupt_came_is_done(monkeypatch):
    """Only instances with cells left say that something is missing."""
    honest = Search.run

    def run(search, *given):
        honest(search, *given)
        interrupt()

    monkeypatch.setattr(Search, "run", run)
    graphs, generator = ensemble(2, classes=3)
    x = torch.rand(2, 4, generator=generator, dtype=torch.float64)
    for nodes, tolerance, left in ((1 << 20, 0.05, 0), (1, 0.0, 2)):
        method = Branch(seconds=60.0, nodes=nodes, tolerance=tolerance)
        result = verify_uncertainty(graphs, x, [0, 1], Perturbation(0.1), method=method, attack=QUICK)
        assert result.interrupted
        assert sum("left" in record.message for record in result.records) == left
        assert sum(bool(record.message) for record in result.records) == left
        assert sum(record.to_dict()["cells"]["left"] > 0 for record in result.records) == left
