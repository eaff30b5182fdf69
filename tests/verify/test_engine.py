"""One engine: every method that walks bounds margins and scores through the same stages, and only ever tightens."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from softhull.data import bundled
from softhull.formats.datasets import load_dataset
from softhull.formats.onnx import load_onnx
from softhull.graph.builder import GraphBuilder
from softhull.graph.ops.relu import Relu
from softhull.graph.ops.softmax import Softmax
from softhull.propagate.methods import Auto, Branch, Linear, Paper, SecondOrder
from softhull.regions import Perturbation
from softhull.verify import branching as branching  # registers the stages of its method
from softhull.verify.engine import Work, solve, stages
from softhull.verify.ensemble import Ensemble, Joined, join
from softhull.verify.margins import Margins, class_change
from softhull.verify.methods import TABLE
from softhull.verify.problem import Effort, Problem
from softhull.verify.programs import Programs
from softhull.verify.robustness import verify_robustness
from softhull.verify.score_claims import ScoreClaims
from softhull.verify.scores import Margin
from softhull.verify.walks import FUNCTIONS
from tests.propagate.networks import random_attention

NO_ATTACK = Effort(attack="never")
WALKS = [Linear(optimize=2), SecondOrder(steps=4), Auto(optimize=2)]


def _margins(seed: int = 0, eps: float = 0.05, depth: int = 1) -> Problem:
    rng = np.random.default_rng(seed)
    graph = random_attention(rng, depth=depth)
    x = torch.from_numpy(rng.uniform(0, 1, size=(4, *graph.input_shape)))
    logits = graph(x).flatten(1)
    region = Perturbation(eps).around(x)
    return Problem(Joined((Ensemble(graph),)), region, x, class_change(logits.argmax(1), logits, "all"))


def _scores(problem: Problem) -> Problem:
    """The same networks and regions, asked for the margin between probabilities."""
    networks = Joined((join([problem.graph], ["network"], problem.graph.input_shape),))
    at = networks.probabilities(problem.start)
    return Problem(networks, problem.region, problem.start, ScoreClaims(Margin(), at.argmax(1), at, outward=True))


def _reached(problem: Problem, x: torch.Tensor) -> torch.Tensor:
    """What is claimed to be bounded, at some inputs."""
    claims = problem.claims
    if isinstance(claims, ScoreClaims):
        return claims.score.value(problem.networks.probabilities(x), claims.label)[None]
    assert isinstance(claims, Margins)
    return (claims.rows * problem.graph(x).flatten(1)).sum(-1) - claims.offsets


@pytest.mark.parametrize("method", WALKS, ids=lambda method: type(method).__name__)
def test_the_same_stages_bound_margins_and_scores(method):
    """A class that no rival overtakes keeps a positive margin of probabilities, and the other way round."""
    margins = _margins()
    scores = _scores(margins)
    of_logits, of_probabilities = (solve(problem, method, NO_ATTACK) for problem in (margins, scores))
    least = margins.claims.least(of_logits)
    point = margins.region.sample(torch.Generator().manual_seed(0))
    assert isinstance(margins.claims, Margins)
    assert isinstance(scores.claims, ScoreClaims)
    values = (margins.claims.rows * margins.graph(point).flatten(1)).sum(-1) - margins.claims.offsets
    assert bool((of_logits.bounds <= values).all())
    reached = Margin().value(scores.networks.probabilities(point), scores.claims.label)
    assert bool((of_probabilities.bounds[0] <= reached + 1e-12).all())
    # Both are bounds on something of one sign: none may prove what the attack-free truth of the other refutes.
    assert bool(((least > 0) <= (reached > 0)).all())
    assert bool(((of_probabilities.bounds[0] > 0) <= (values > 0).all(0)).all())


@pytest.mark.parametrize("method", WALKS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("ask", [lambda problem: problem, _scores], ids=["margins", "scores"])
def test_a_solution_only_gets_tighter_from_stage_to_stage(method, ask):
    problem = ask(_margins(6 if isinstance(method, SecondOrder) else 3, 1.0))  # several stages, and a small network
    work = Work(problem, NO_ATTACK)
    seen = 0
    with torch.no_grad():
        for stage in stages(method, work):
            before = work.found.bounds.clone()
            problem.claims.improve(stage, work.found)
            assert bool((work.found.bounds >= before).all())
            seen += 1
    assert seen >= 2
    assert torch.equal(work.found.bounds, solve(problem, method, NO_ATTACK).bounds)


@pytest.mark.parametrize("ask", [lambda problem: problem, _scores], ids=["margins", "scores"])
def test_what_one_method_knows_another_starts_from(ask):
    """Ranges hold, only ever get tighter, and what is built on them holds."""
    problem = ask(_margins(3, 0.3, depth=2))
    first = solve(problem, Linear(mixture=1.0, optimize=0), NO_ATTACK)
    second = solve(problem, Linear(mixture=0.0, optimize=2), NO_ATTACK, first.knowledge)
    (earlier,), (later,) = first.knowledge, second.knowledge
    (joint,) = problem.networks.over(problem.region).graphs
    tighter = 0

    def unknown() -> tuple[torch.Tensor, torch.Tensor]:
        raise AssertionError("a range was given up")

    for seed in range(20):
        values = joint.graph.values(problem.region.sample(torch.Generator().manual_seed(seed)))
        for index in earlier.known("rough"):
            known, better = (each.find("rough", index, unknown) for each in (earlier, later))
            assert bool(((known[0] <= better[0]) & (better[1] <= known[1])).all())
            assert bool(((better[0] <= values[index]) & (values[index] <= better[1])).all())
            tighter += int((known[0] < better[0]).sum())
    assert tighter
    part = torch.tensor([2, 0])
    some = replace(
        problem, region=problem.region.take(part), start=problem.start[part], claims=problem.claims.take(part)
    )
    third = solve(some, SecondOrder(steps=4), NO_ATTACK, [each.take(part) for each in first.knowledge])
    for asked, found in ((problem, second), (some, third)):
        for seed in range(20):
            x = asked.region.sample(torch.Generator().manual_seed(seed))
            assert bool((found.bounds <= _reached(asked, x)).all())


def test_every_method_of_the_table_has_stages():
    for entry in TABLE.values():
        settings = entry.settings()
        handled = stages.dispatch(settings) is not stages.dispatch(object)
        assert handled or entry.place.startswith("solve."), entry.name  # convex programs are methods of Programs
    assert stages.dispatch(Programs) is not stages.dispatch(object)
    assert {Linear, Paper, SecondOrder, Auto, Branch} <= set(stages.registry)


def test_no_time_leaves_what_holds_without_work():
    problem = _margins()
    found = solve(problem, Auto(), Effort(deadline=0.0))
    assert bool((found.bounds == -torch.inf).all())
    assert "time limit" in found.stopped
    scored = _scores(problem)
    found = solve(scored, Auto(), Effort(deadline=0.0))
    torch.testing.assert_close(found.bounds, torch.full_like(found.bounds, -1))  # below what a margin can ever be
    assert bool((found.bounds <= -1).all())
    assert "time limit" in found.stopped


def test_groups_are_excluded_by_their_best_row():
    """One group of two rows, of which the second holds: nothing is open."""
    b = GraphBuilder((2,))
    graph = b.finish(b.elementwise(Relu(), b.linear(b.reshape(-1, (1, 2)), torch.eye(2, dtype=torch.float64))))
    x = torch.tensor([[0.5, 0.9]], dtype=torch.float64)
    rows = torch.tensor([[[1.0, -1.0]], [[-1.0, 1.0]]], dtype=torch.float64)
    claims = Margins(rows, torch.zeros(2, 1, dtype=torch.float64), torch.zeros(2, dtype=torch.long))
    found = solve(Problem(Joined((Ensemble(graph),)), Perturbation(0.1).around(x), x, claims), Linear(), Effort())
    assert not claims.open(found).any()
    assert found.attack.isinf().all()  # what is proved is not attacked
    assert float(claims.least(found)[0]) == pytest.approx(0.2)


def test_softmax_rows_of_ensembles_are_walked_together_or_alone():
    """Networks with inputs of their own can only be worse together."""
    rng = np.random.default_rng(5)
    graphs = [random_attention(rng, depth=1) for _ in range(2)]
    while graphs[1].input_shape != graphs[0].input_shape:
        graphs[1] = random_attention(rng, depth=1)
    whole = join(graphs, ["a", "b"])
    assert len(whole.softmaxes) == 2
    assert all(isinstance(whole.graph.nodes[i].operator, Softmax) for i in whole.softmaxes)
    x = torch.from_numpy(rng.uniform(0, 1, size=(3, *graphs[0].input_shape)))
    together, alone = Joined((whole,)), Joined(whole.alone)
    at = together.probabilities(x)
    assert torch.equal(at, alone.probabilities(x))
    claims, region = ScoreClaims(Margin(), at.argmax(1), at, outward=True), Perturbation(0.05).around(x)
    one, two = (
        solve(Problem(networks, region, x, claims), SecondOrder().linear, NO_ATTACK).bounds
        for networks in (together, alone)
    )
    assert bool((one >= two - 1e-12).all())


def _rectified_first(eps: float) -> Problem:
    """All of the loss is that of a rectifier before the attention, which hardly moves anything."""
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.normal(size=shape))

    b = GraphBuilder((3, 4))
    h = b.linear(b.elementwise(Relu(), b.linear(-1, normal(4, 8))), normal(8, 4))
    q, k, v = (b.linear(h, 0.01 * normal(4, 4)) for _ in range(3))
    mixed = b.matmul(b.add(Softmax(1), b.matmul(q, b.transpose(k, (1, 0)))), v)
    graph = b.finish(b.linear(b.reshape(b.sum_of(h, mixed), (1, 12)), normal(12, 3)))
    x = torch.from_numpy(rng.normal(size=(2, *graph.input_shape)))
    logits = graph(x).flatten(1)
    region = Perturbation(eps).around(x)
    return Problem(Joined((Ensemble(graph),)), region, x, class_change(logits.argmax(1), logits, "all"))


def test_auto_leaves_out_what_cannot_close_the_gap():
    """Second order improves products and what follows them; a rectifier before them is left to gradient steps."""
    found = solve(_rectified_first(0.5), Auto(), NO_ATTACK)
    assert not bool((found.bounds.amin(0) > 0).any())
    for i in range(2):
        ways = [step.by for step in found.tried[i]]
        assert ways[0] == "linear"
        assert not any(way.startswith("second order") for way in ways)
        assert "Relu" in found.notes[i]


def test_what_was_tried_is_written_down():
    problem = _margins(eps=3.0)
    found = solve(problem, Auto(optimize=2), NO_ATTACK)
    least = problem.claims.least(found).tolist()
    assert any(len(steps) > 1 for steps in found.tried.values())
    for i, steps in found.tried.items():
        assert steps[0].by == "linear"
        assert [step.bound for step in steps] == sorted(step.bound for step in steps)
        assert steps[-1].bound == least[i]
        assert all(step.cpu_seconds >= 0 for step in steps)


def test_where_activations_lose_most_functions_between_them_are_tried_with_a_time_limit():
    """They hold, and what keeps its choices for certificates goes without them."""
    tried = 0
    for seed in (6, 8, 11):
        problem = _margins(seed, 0.15)
        effort = Effort(attack="never", deadline=time.monotonic() + 600)
        with_limit = solve(problem, Auto(optimize=0), effort)
        assert isinstance(problem.claims, Margins)
        for number in range(20):
            point = problem.region.sample(torch.Generator().manual_seed(number))
            values = (problem.claims.rows * problem.graph(point).flatten(1)).sum(-1) - problem.claims.offsets
            assert bool((with_limit.bounds <= values).all())
        tried += sum(step.by == FUNCTIONS for steps in with_limit.tried.values() for step in steps)
        for other in (NO_ATTACK, replace(effort, proofs=True)):
            without = solve(problem, Auto(optimize=0), other)
            assert all(step.by != FUNCTIONS for steps in without.tried.values() for step in steps)
    assert tried


def test_what_fitted_rows_prove_does_not_depend_on_the_batch():
    """The noise of a batch is that of all its instances; fits are bounded over that of one."""
    network, data = load_onnx(bundled("digits-attention.onnx")), load_dataset(bundled("digits.npz"))
    images = [28, 72, 84, 13, 2, 20]

    def bounds(which: list[int]) -> list[float | None]:
        ball = Perturbation(0.07, clip=(0.0, 1.0))
        found = verify_robustness(network, data.take(which), data.y[which], ball, method=SecondOrder(), attack=False)
        return [record.bound for record in found.records]

    together = bounds(images)
    for place in range(2):
        assert bounds(images[place : place + 1]) == pytest.approx(together[place : place + 1], rel=1e-5)
