"""Scores of networks with attention: nothing found within the ball is worse than what is certified."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import softhull
from softhull.attack.score import ScoreAttack
from softhull.cli.app import app
from softhull.errors import InvalidInput, ModelError
from softhull.graph.builder import GraphBuilder
from softhull.graph.ops.relu import Relu
from softhull.graph.ops.softmax import Softmax
from softhull.propagate.methods import Auto, Linear, SecondOrder
from softhull.propagate.second_order.forward import NoAffineForms
from softhull.regions import Perturbation
from softhull.runs.questions import find_question
from softhull.verify.scores import SCORES, find_score
from softhull.verify.uncertainty import verify_uncertainty
from tests.propagate.checks import points_of
from tests.propagate.networks import random_attention

NETWORKS = int(os.environ.get("SOFTHULL_RANDOM_NETWORKS", "2"))
INPUTS = 4
QUICK = ScoreAttack(steps=10, restarts=2)
FIRST = Auto(optimize=0)  # what the default does before it resorts to gradient steps
# What is checked is itself evaluated in floating point.
ROUNDING = 1e-10


def attention(rng):
    """A random network of one or two attention layers on four inputs."""
    while True:
        graph = random_attention(rng, depth=int(rng.integers(1, 3)))
        if math.prod(graph.input_shape) == INPUTS:
            return graph


def feedforward(rng):
    b = GraphBuilder((2, 2))
    x = b.elementwise(Relu(), b.linear(b.reshape(-1, (1, INPUTS)), torch.from_numpy(rng.normal(size=(INPUTS, 5)))))
    return b.finish(b.elementwise(Softmax(1), b.linear(x, torch.from_numpy(rng.normal(size=(5, 3))))))


def instances(rng, count=2):
    return torch.from_numpy(rng.uniform(0, 1, size=(count, INPUTS))), torch.from_numpy(rng.integers(0, 3, size=count))


def mean_probabilities(graphs, x):
    """The outputs of the networks, those without a softmax with one, averaged."""
    outputs = [graph(x.reshape(len(x), *graph.input_shape)).flatten(1) for graph in graphs]
    ends = [isinstance(graph.nodes[-1].operator, Softmax) for graph in graphs]
    return torch.stack([p if end else p.softmax(-1) for p, end in zip(outputs, ends)]).mean(0)


def assert_nothing_is_worse(graphs, x, label, perturbation, score, found, seed):
    """Sampled points, corners and attacked points keep within the certified score."""
    rule = find_score(score)
    sign = 1 if rule.worst_when == "high" else -1
    bound = sign * torch.from_numpy(found.column("bound"))
    assert not bound.isnan().any()
    region = perturbation.around(x)
    _, attacked = ScoreAttack(steps=15, restarts=3, seed=seed).run(
        lambda z: rule.badness(mean_probabilities(graphs, z), label), region, [x]
    )
    for point in (*points_of(region, seed, 45), attacked, x):
        value = sign * rule.value(mean_probabilities(graphs, point), label)
        assert bool((value <= bound + ROUNDING * (1 + value.abs())).all()), (score, seed)


@pytest.mark.parametrize("norm", [math.inf, 2])
@pytest.mark.parametrize("seed", range(NETWORKS))
def test_no_point_of_a_ball_is_worse_than_certified(seed, norm):
    rng = np.random.default_rng(5000 + seed)
    graph, (x, label) = attention(rng), instances(rng)
    perturbation = Perturbation(10 ** rng.uniform(-3, -0.3), norm, (0, 1) if seed % 2 else None)
    scores = sorted(SCORES)
    for i, method in enumerate((Auto(optimize=2), SecondOrder(steps=4), Linear(optimize=1))):
        score = scores[(seed + i) % len(scores)]
        found = verify_uncertainty(graph, x, label, perturbation, score, method, attack=QUICK)
        assert_nothing_is_worse([graph], x, label, perturbation, score, found, seed)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("seed", range(max(2, NETWORKS // 4)))
def test_ensembles_share_the_input_or_do_not(seed, separate):
    """Two networks with attention and one without: the mean of three has no exact third anywhere."""
    rng = np.random.default_rng(6000 + seed)
    graphs, (x, label) = [attention(rng), feedforward(rng), attention(rng)], instances(rng)
    perturbation = Perturbation(10 ** rng.uniform(-3, -0.5), (math.inf, 2)[seed % 2])
    for score in ("nll", "brier"):
        found = verify_uncertainty(graphs, x, label, perturbation, score, FIRST, separate=separate, attack=QUICK)
        assert_nothing_is_worse(graphs, x, label, perturbation, score, found, seed)


def test_separate_inputs_are_never_tighter_than_a_shared_one():
    rng = np.random.default_rng(7)
    graphs, (x, label) = [attention(rng), attention(rng)], instances(rng)
    asked = (graphs, x, label, Perturbation(0.05), "nll", SecondOrder().linear)
    shared, alone = (verify_uncertainty(*asked, separate=one, attack=QUICK).column("bound") for one in (False, True))
    assert (shared <= alone + 1e-12).all()


@pytest.mark.parametrize("score", ["nll", "brier", "margin"])
def test_second_order_is_never_worse_than_the_linear_walks_it_starts_from(score):
    sign = 1 if SCORES[score].worst_when == "high" else -1
    for seed in range(2):
        rng = np.random.default_rng(8000 + seed)
        graph, (x, label) = attention(rng), instances(rng)
        asked = (graph, x, label, Perturbation(10 ** rng.uniform(-2.5, -0.5)), score)
        plain, *better = (
            sign * verify_uncertainty(*asked, method, attack=QUICK).column("bound")
            for method in (SecondOrder().linear, SecondOrder(), FIRST)
        )
        assert all((found <= plain).all() for found in better)


def test_the_bundled_network_is_bounded_more_tightly_by_second_order():
    network = softhull.load_onnx(softhull.bundled("digits-attention.onnx"))
    digits = softhull.load_dataset(softhull.bundled("digits.npz"))
    asked = (network, digits.x[:2], digits.y[:2], Perturbation(0.05, clip=(0, 1)), "nll")
    linear, auto = (verify_uncertainty(*asked, method, attack=QUICK) for method in (SecondOrder().linear, "auto"))
    assert (auto.column("attack") <= auto.column("bound")).all()
    gap, before = (found.column("bound") - found.column("attack") for found in (auto, linear))
    assert (gap < 0.5 * before).all()


def test_no_perturbation_leaves_the_clean_score():
    rng = np.random.default_rng(9)
    graph, (x, label) = attention(rng), instances(rng)
    for score in ("nll", "brier", "entropy"):
        found = verify_uncertainty(graph, x, label, Perturbation(0.0), score, FIRST, attack=QUICK)
        np.testing.assert_allclose(found.column("bound"), found.column("clean"), atol=1e-6)


def test_walks_hold_for_feedforward_networks_and_auto_leaves_these_to_the_dual():
    rng = np.random.default_rng(10)
    graph, (x, label) = feedforward(rng), instances(rng)
    ball = Perturbation(0.1)
    for method in ("linear", "second-order"):
        found = verify_uncertainty(graph, x, label, ball, "brier", method, attack=QUICK)
        assert_nothing_is_worse([graph], x, label, ball, "brier", found, 10)
    auto, dual = (
        verify_uncertainty(graph, x, label, ball, "brier", method, attack=QUICK) for method in ("auto", "dual")
    )
    np.testing.assert_array_equal(auto.column("bound"), dual.column("bound"))


@pytest.mark.parametrize(("score", "bound"), [("brier", 2.0), ("nll", math.inf), ("error", 1.0)])
def test_out_of_time_leaves_what_holds_for_any_distribution(score, bound):
    rng = np.random.default_rng(11)
    graph, (x, label) = attention(rng), instances(rng)
    found = verify_uncertainty(graph, x, label, Perturbation(0.1), score, timeout=0.0)
    np.testing.assert_allclose(found.column("bound"), bound)
    assert all("time limit" in record.message for record in found.records)


def test_a_record_says_where_second_order_did_not_apply(monkeypatch):
    def refuse(bounds):
        raise NoAffineForms("too many inputs")

    monkeypatch.setattr("softhull.verify.walks.SecondOrderBounds.of", refuse)
    rng = np.random.default_rng(15)
    graph, (x, label) = attention(rng), instances(rng)
    asked = (graph, x, label, Perturbation(0.05), "nll")
    plain, left = (
        verify_uncertainty(*asked, method, attack=QUICK) for method in (SecondOrder().linear, "second-order")
    )
    np.testing.assert_array_equal(left.column("bound"), plain.column("bound"))
    assert all(record.message == "linear bounds only: too many inputs" for record in left.records)


def test_the_command_answers_for_attention_by_default():
    given = [softhull.bundled("digits-attention.onnx"), "--data", softhull.bundled("digits.npz"), "--eps", "0.03"]
    given += ["--clip", "0", "1", "--indices", "0:1"]
    result = CliRunner().invoke(app, ["uncertainty", *map(str, given)])
    assert result.exit_code == 0
    assert "nll of 1 instances: certified at most" in result.output
    refused = CliRunner().invoke(app, ["uncertainty", *map(str, given), "--method", "lp"])
    assert refused.exit_code == 2
    assert "this method takes feedforward and convolutional networks" in refused.output


def test_many_instances_are_worked_on_in_parts(monkeypatch):
    """What an instance gets hardly depends on how many others are held at once: only by where a search ends."""
    rng = np.random.default_rng(12)
    graph, (x, label) = attention(rng), instances(rng, 3)
    asked = (graph, x, label, Perturbation(0.05), "nll", FIRST)
    together = verify_uncertainty(*asked, attack=QUICK).column("bound")
    monkeypatch.setattr("softhull.verify.walk_stages.instances_together", lambda bounds: 1)
    np.testing.assert_allclose(verify_uncertainty(*asked, attack=QUICK).column("bound"), together, rtol=1e-2)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"method": "dual"}, ModelError, "neither affine nor entrywise; this method takes feedforward .*'auto'"),
        ({"bound": "er/lse"}, InvalidInput, "one bound for both sides"),
        ({"bound": "soft"}, InvalidInput, "unknown bound"),
        ({"label": [0, 3]}, InvalidInput, "label 3 of instance 1 is out of range"),
    ],
)
def test_bad_questions_are_answered_in_one_line(change, error, message):
    rng = np.random.default_rng(13)
    asked = {"networks": attention(rng), "x": instances(rng)[0], "label": [0, 1], "perturbation": Perturbation(0.1)}
    with pytest.raises(error, match=message) as raised:
        verify_uncertainty(**(asked | change))
    assert "\n" not in str(raised.value)


def test_one_bound_for_both_sides_takes_the_place_of_the_hull():
    rng = np.random.default_rng(14)
    graph, (x, label) = attention(rng), instances(rng)
    ball = Perturbation(0.1)
    found = verify_uncertainty(graph, x, label, ball, "brier", "linear", "lin", attack=QUICK)
    assert_nothing_is_worse([graph], x, label, ball, "brier", found, 14)


def test_a_campaign_may_name_any_bound_with_the_default_method():
    name, method, bound = find_question("uncertainty").method(None, "er/lse", {"optimize": 3})
    assert (name, method, bound) == ("auto", Auto(optimize=3), "er/lse")
