"""Verdicts of the robustness question: they add up, they are honest, and the attack never breaks a certificate."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from softhull.attack.pgd import minimize_margin
from softhull.errors import InvalidInput
from softhull.formats.vnnlib import Disjunct, Specification
from softhull.graph.builder import GraphBuilder
from softhull.graph.ops.relu import Relu
from softhull.propagate.crown import LinearBounds
from softhull.propagate.methods import Branch, FirstLook, Linear, Paper
from softhull.propagate.structure import Structure
from softhull.regions import Perturbation
from softhull.verify import walk_stages
from softhull.verify.margins import Margins, class_change
from softhull.verify.methods import CLASSES, RANGES, SCORES, TABLE, find_method
from softhull.verify.result import Verdict
from softhull.verify.robustness import certified_radius, verify_robustness, verify_specification
from tests.propagate.networks import random_attention
from tests.propagate.test_shadow import encoder


def _network(seed: int = 0):
    rng = np.random.default_rng(seed)
    graph = random_attention(rng, depth=1)
    x = torch.from_numpy(rng.uniform(0, 1, size=(20, *graph.input_shape)))
    return graph, x, graph(x).flatten(1).argmax(1)


def _identity(size: int):
    """The network whose logits are its inputs."""
    builder = GraphBuilder((size,))
    return builder.finish(builder.scale(-1, 1.0, torch.zeros(size, dtype=torch.float64)))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["all", "runner-up"])
def test_certified_instances_survive_the_attack(seed, kind):
    graph, x, labels = _network(seed)
    labels[0] = (labels[0] + 1) % 3
    perturbation = Perturbation(0.05)
    result = verify_robustness(graph, x, labels, perturbation, kind, Linear(optimize=3), attack=True, seed=seed)
    summary = result.summary()
    assert sum(summary[v.value] for v in Verdict) == summary["total"] == 20
    assert result[0].verdict is Verdict.MISCLASSIFIED
    unsafe = class_change(labels, graph(x).flatten(1), kind)
    region = perturbation.around(x)
    for group in range(unsafe.groups):
        numbers = torch.full((20,), group)

        def margin(y: torch.Tensor, which: torch.Tensor, numbers: torch.Tensor = numbers) -> torch.Tensor:
            return unsafe.at(graph(y).flatten(1), which, numbers[which])

        attacked, _ = minimize_margin(margin, region, x, seed=seed + 1)
        for record in result.records:
            if record.verdict is Verdict.CERTIFIED:
                assert record.bound is not None
                assert attacked[record.index] >= record.bound - 1e-9
                assert record.attack is None or record.attack > 0


@pytest.fixture(scope="module")
def walked():
    """An encoder, inputs with their classes, and what is found of them at some radii by walks."""
    rng = np.random.default_rng(3)
    graph = encoder(rng, 2, True, 2, 4)
    x = torch.from_numpy(rng.normal(size=(3, *graph.input_shape)))
    labels = graph(x).flatten(1).argmax(1)
    usual = {eps: verify_robustness(graph, x, labels, Perturbation(eps), attack=True) for eps in (1e-3, 0.05, 0.3)}
    return graph, x, labels, usual


@pytest.mark.parametrize("reached", [True, False])
def test_forms_over_balls_lose_no_verdict_that_walks_to_the_input_give(reached, walked, monkeypatch):
    """What they prove survives the attack; what they leave is walked, unless walks would not reach the input."""
    graph, x, labels, usual = walked
    monkeypatch.setattr(walk_stages, "worth_balls", lambda bounds: True)
    monkeypatch.setattr(Structure, "reaches_input", reached)
    for eps, before in usual.items():
        result = verify_robustness(graph, x, labels, Perturbation(eps), attack=True)
        for record, other in zip(result.records, before.records):
            if record.verdict is Verdict.CERTIFIED:
                assert record.bound is not None
                assert record.attack is not None
                assert record.attack >= record.bound > 0
                assert other.verdict is not Verdict.FALSIFIED
            elif reached:
                assert other.verdict is not Verdict.CERTIFIED
            else:
                assert record.verdict is Verdict.FALSIFIED or "forms only" in record.message
        if eps == 1e-3:
            assert all(record.verdict is Verdict.CERTIFIED for record in result.records)


def test_a_first_look_at_a_large_network_starts_no_walks(monkeypatch):
    rng = np.random.default_rng(3)
    graph = encoder(rng, 1, True, 2, 4)
    x = torch.from_numpy(rng.normal(size=(1, *graph.input_shape)))
    walked, start = [], walk_stages.linear_walks

    def watched(work, method, *args, **settings):
        walked.append(type(method))
        return start(work, method, *args, **settings)

    monkeypatch.setattr(walk_stages, "worth_balls", lambda bounds: True)
    monkeypatch.setattr(walk_stages, "linear_walks", watched)
    found = certified_radius(graph, x, graph(x).flatten(1).argmax(1), Perturbation(0.5), steps=2)
    assert float(found[0]) > 0
    assert walked
    assert FirstLook not in walked


def test_a_counterexample_lies_in_the_ball_and_changes_the_class():
    found = 0
    for seed in range(6):
        graph, x, labels = _network(seed)
        result = verify_robustness(graph, x, labels, Perturbation(0.5, clip=(0, 1)), method=Linear(optimize=0))
        for record in result.records:
            if record.verdict is Verdict.FALSIFIED:
                found += 1
                point = torch.from_numpy(record.counterexample)
                assert bool(((point - x[record.index]).abs() <= 0.5 + 1e-15).all())
                assert bool(((point >= 0) & (point <= 1)).all())
                assert int(graph(point[None]).argmax()) != record.label
    assert found


@pytest.mark.parametrize("norm", [math.inf, 2, 1])
def test_the_identity_is_decided_exactly(norm):
    graph = _identity(3)
    x = torch.tensor([[1.0, 0.0, 0.0]] * 2, dtype=torch.float64)
    distance = {math.inf: 0.5, 2: math.sqrt(0.5), 1: 1.0}[norm]  # to the point where two logits meet
    inside = verify_robustness(graph, x, [0, 0], Perturbation(0.99 * distance, norm))
    outside = verify_robustness(graph, x, [0, 0], Perturbation(1.02 * distance, norm))
    assert inside.count(Verdict.CERTIFIED) == 2
    assert outside.count(Verdict.FALSIFIED) == 2
    radius = certified_radius(graph, x, [0, 0], Perturbation(2.0, norm), steps=20)
    assert np.allclose(radius, distance, rtol=1e-4)
    assert bool((radius <= distance).all())


def test_a_single_logit_has_two_classes():
    builder = GraphBuilder((1, 2))
    graph = builder.finish(builder.linear(-1, torch.tensor([[1.0], [1.0]], dtype=torch.float64)))
    result = verify_robustness(graph, [[1.0, 1.0], [-1.0, -1.0], [1.0, 1.0]], [1, 0, 0], Perturbation(0.5))
    assert [record.verdict for record in result.records] == [
        Verdict.CERTIFIED,
        Verdict.CERTIFIED,
        Verdict.MISCLASSIFIED,
    ]


def test_targets_are_the_only_classes_that_count():
    graph = _identity(3)
    x = [[1.0, 0.9, 0.0]]
    assert verify_robustness(graph, x, [0], Perturbation(0.3), "all").count(Verdict.FALSIFIED) == 1
    assert verify_robustness(graph, x, [0], Perturbation(0.3), "targets", targets=[2, 0]).count(Verdict.CERTIFIED) == 1


def test_deep_networks_do_not_exhaust_the_stack():
    builder = GraphBuilder((1, 2))
    x = -1
    for _ in range(300):
        x = builder.elementwise(Relu(), builder.linear(x, torch.tensor([[0.9, 0.1], [-0.1, 1.0]], dtype=torch.float64)))
    graph = builder.finish(x)
    result = verify_robustness(graph, [[0.0, 1.0]], [1], Perturbation(0.01), method=Linear(optimize=0), attack=False)
    assert result.count(Verdict.ERROR) == 0


def test_a_time_limit_and_an_interrupt_leave_honest_verdicts(monkeypatch):
    graph, x, labels = _network()
    late = verify_robustness(graph, x, labels, Perturbation(0.05), timeout=1e-9)
    assert late.count(Verdict.UNKNOWN) == 20
    assert "time limit" in late[0].message

    def interrupted(*arguments, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(Margins, "attack", interrupted)
    stopped = verify_robustness(graph, x, labels, Perturbation(0.05), method=Linear(optimize=0))
    assert len(stopped) == 20
    assert stopped.count(Verdict.CERTIFIED) > 0  # found before the interrupt, and kept
    assert all(record.verdict in (Verdict.CERTIFIED, Verdict.UNKNOWN) for record in stopped.records)


def test_a_failing_instance_does_not_take_the_others_with_it(monkeypatch):
    graph, x, labels = _network()
    work = LinearBounds.lower

    def failing(self, *arguments, **named):
        if bool((self.region.lower == (x[3] - 0.01)).all(-1).any()):
            raise RuntimeError("no luck\nwith this one")
        return work(self, *arguments, **named)

    monkeypatch.setattr(LinearBounds, "lower", failing)
    result = verify_robustness(graph, x, labels, Perturbation(0.01), method=Linear(optimize=0))
    assert result[3].verdict is Verdict.ERROR
    assert result[3].message == "no luck with this one"
    assert result.count(Verdict.ERROR) == 1


def test_nan_bounds_are_never_certificates(monkeypatch):
    graph, x, labels = _network()
    monkeypatch.setattr(LinearBounds, "lower", lambda self, i, C, **named: C.new_full((len(C), self.size), math.nan))
    result = verify_robustness(graph, x, labels, Perturbation(0.01), method=Linear(optimize=0))
    assert result.count(Verdict.CERTIFIED) == 0
    assert len(result) == 20


def test_results_are_plain_data():
    graph, x, labels = _network(1)
    result = verify_robustness(graph, x, labels, Perturbation(0.5), method=Paper())
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain["summary"]["total"] == 20
    assert {"index", "verdict", "bound", "attack", "label"} <= set(plain["instances"][0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": [0] * 19}, "19 labels"),
        ({"label": [7] * 20}, "labels must be from 0 to 2"),
        ({"label": [0.5] * 20}, "whole numbers"),
        ({"label": ["0"] * 20}, "whole numbers"),
        ({"label": [None] * 20}, "whole numbers"),
        ({"label": [0j] * 20}, "whole numbers"),
        ({"x": np.zeros((20, 1, 100))}, "does not fit"),
        ({"x": np.full((20, 1, 6), np.nan)}, "NaN"),
        ({"property": "most"}, "unknown property"),
        ({"property": "targets"}, "needs targets"),
        ({"property": "targets", "targets": [9]}, "targets must be"),
        ({"property": "targets", "targets": 9}, "targets must be"),
        ({"property": "targets", "targets": [0.9]}, "targets must be whole numbers"),
        ({"property": "targets", "targets": [True]}, "targets must be whole numbers"),
        ({"property": "targets", "targets": ["1"]}, "targets must be whole numbers"),
        ({"timeout": -1.0}, "timeout"),
        ({"network": "file.onnx"}, "network must come from"),
    ],
)
def test_senseless_questions_are_refused_in_one_line(change, message):
    graph, x, labels = _network(3)
    if "x" in change and change["x"].shape[-1] == 6:
        change = {"x": np.full(tuple(x.shape), np.nan)}
    arguments = {"network": graph, "x": x, "label": labels, "perturbation": Perturbation(0.1)} | change
    with pytest.raises(InvalidInput, match=message) as caught:
        verify_robustness(**arguments)
    assert "\n" not in str(caught.value)


def test_methods_have_names():
    assert find_method("linear", bound="lse*", optimize=5) == Linear("lse*", 5)
    assert find_method("paper", bound="er") == Paper("er") == find_method(Paper("er"))
    for name, wrong in (("guess", {}), ("linear", {"bound": "tight"}), ("linear", {"optimize": -1})):
        with pytest.raises(InvalidInput):
            find_method(name, **wrong)
    with pytest.raises(InvalidInput, match="takes no gradient steps"):
        find_method("paper", optimize=5)
    with pytest.raises(InvalidInput, match=r"did you mean linear\?"):
        find_method("liner")


def test_every_method_answers_what_the_table_says():
    """And is refused, by its name and as an object, where it does not."""
    for name, entry in TABLE.items():
        for question in (CLASSES, SCORES, RANGES):
            for asked in (name, entry.settings()()):
                if question in entry.answers:
                    assert type(find_method(asked, question)) is entry.settings()
                else:
                    with pytest.raises(InvalidInput, match=f"method '{name}' does not bound {question}"):
                        find_method(asked, question)


def _specification(offset: float) -> Specification:
    """Inputs in [0, 1]^2 with y_0 >= offset and y_1 >= offset (one disjunct), or y_0 <= -1 (another)."""
    lower, upper = np.zeros(2), np.ones(2)
    both = Disjunct(lower, upper, -np.eye(2), np.full(2, -offset), np.zeros(2, bool))
    low = Disjunct(lower, upper, np.array([[1.0, 0.0]]), np.array([-1.0]), np.zeros(1, bool))
    return Specification(2, 2, (both, low))


def test_specifications_are_decided():
    builder = GraphBuilder((2,))
    graph = builder.finish(builder.elementwise(Relu(), -1))
    safe = verify_specification(graph, _specification(1.5))
    assert safe.verdict == "unsat"
    assert safe.bound == pytest.approx(0.5)
    broken = verify_specification(graph, _specification(0.5))
    assert broken.verdict == "sat"
    assert broken.witness is not None
    assert broken.outputs is not None
    assert bool((broken.witness >= 0.5).all())
    assert bool((broken.outputs >= 0.5).all())
    assert verify_specification(graph, _specification(1.0)).verdict in ("sat", "unknown")  # touches
    assert verify_specification(graph, _specification(0.5), timeout=1e-9).verdict in ("timeout", "sat")
    with pytest.raises(InvalidInput, match="3 inputs"):
        verify_specification(graph, Specification(3, 2, ()))


@pytest.mark.parametrize("seed", range(2))
def test_an_instance_has_the_same_bound_alone_as_among_others(seed):
    method = Linear(optimize=0)
    rng = np.random.default_rng(seed)
    network = random_attention(rng, depth=1 + seed % 2)
    x = rng.normal(size=(6, *network.input_shape))
    labels = network(torch.from_numpy(x)).flatten(1).argmax(1).numpy()
    ball = Perturbation(float(10 ** rng.uniform(-2, -0.5)))
    together = verify_robustness(network, x, labels, ball, method=method, attack=False)
    for i, record in enumerate(together.records[:3]):
        alone = verify_robustness(network, x[i : i + 1], labels[i : i + 1], ball, method=method, attack=False)
        assert alone.records[0].verdict == record.verdict
        # Sums in another order end root searches elsewhere.
        assert alone.records[0].bound == pytest.approx(record.bound, rel=1e-5, abs=1e-9)


def test_cells_are_boxes_where_few_inputs_move():
    rng = np.random.default_rng(0)
    graph = encoder(rng, 1, True, tokens=6, width=6)
    x = torch.from_numpy(rng.normal(size=(1, *graph.input_shape)))
    labels = graph(x).flatten(1).argmax(1)
    only = np.zeros(graph.input_shape, dtype=bool)
    only[0, :3] = True
    ball, plain = Perturbation(0.45, only=only), Linear(optimize=0)
    assert verify_robustness(graph, x, labels, ball, method=plain)[0].verdict is Verdict.UNKNOWN
    (record,) = verify_robustness(graph, x, labels, ball, method=Branch(inner=plain, seconds=60)).records
    assert record.verdict is Verdict.CERTIFIED
    assert {entry for entry, _ in record.cuts} == {-1, 0, 1, 2}  # leaves, and the inputs that move
    leaves = sum(entry < 0 for entry, _ in record.cuts)
    assert record.cells is not None
    assert record.to_dict()["cells"] == {"number": leaves, "depth": record.cells.depth, "left": 0}
    assert math.log2(leaves) <= record.cells.depth < leaves
