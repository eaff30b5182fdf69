"""The dishonest writer: honest proofs as a start, random steps that follow the grammar, and changes of every field."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from softhull.certificates.prover import Proof
from softhull.certificates.second_order import SecondOrder
from softhull.certificates.tree import Tree
from softhull.certificates.write import NoProof, class_certificate, score_certificate
from softhull.checker import tree as trees
from softhull.checker.balls import Balls
from softhull.checker.certificate import Certificate
from softhull.checker.check import sha256
from softhull.checker.network import Curve, Kink, Networks, Product, Softmax
from softhull.checker.replay import Rule
from softhull.checker.scores import SCORES
from softhull.checker.session import exactly
from softhull.checker.tree import Cell
from softhull.formats.onnx import load_onnx

from .networks import Instance
from .truth import Pool, Truth

Step = dict[str, Any]
STRANGE: list[Any] = [
    None, -1, 0, 1, 2, 7, 0.9, 1.0, -0.5, True, False, "", "input", "0:x", [], [0], [0, 0], {}, 10**30, 1e308,
    float("nan"), float("inf"), -float("inf"), [[0]], "0::probabilities",
]  # fmt: skip
FUNCTIONS = ("functions", "left", "right")  # keys of rules that name steps of functions
NUMBERS = [0.0, 1.0, -1.0, 0.25, 0.5, 1 + 1e-12, 2.0, -1e-300, 1e-300, 1e300, -1e300, np.nan, np.inf, -np.inf]


def norm_of(instance: Instance) -> str:
    return "inf" if np.isinf(instance.region.norm) else str(int(instance.region.norm))


KEPT = 0.5  # share of the squares with which a kink alone loses least
MULTIPLIERS = (0.0, 0.1, 1.0, 10.0)  # of cuts
ALL_SCORES = "attention 2"  # the others have one: scores are concluded by the same rules whatever the network


# Honest proofs


def honest(instance: Instance, truth: Truth, parsed: Networks) -> Iterator[Certificate]:
    """Proofs of the writer: nothing yet, the class or a margin, by first and by second order, and scores."""
    pool = truth.pool(instance.x, instance.region.eps, norm_of(instance), instance.region.clip)
    logits = pool.floats["0::logits"][0]
    label = int(logits.argmax()) if len(logits) > 1 else int(logits[0] > 0)
    region = instance.region
    products = any(isinstance(node, Product) for node in parsed.nodes)
    if len(logits) > 1:
        yield margins(instance, label, rivals=[])
    if len(instance.models) == 1:
        with suppress(NoProof):  # too large a region; the margins below are proofs all the same
            yield class_certificate(instance.paths[0], instance.x, label, region)
        if len(logits) > 1:
            yield margins(instance, label, [k for k in range(len(logits)) if k != label])
        if products and any(isinstance(parsed.nodes[i], Softmax) for i in parsed.before([parsed.logits[0].node])):
            yield margins(instance, label, [k for k in range(len(logits)) if k != label][:1], fitted=True)
    if len(logits) > 1:
        yield cells(instance, label, int(logits.argmin()))
    if len(logits) > 1 and (products or len(instance.models) > 1):
        names = list(SCORES) if instance.name == ALL_SCORES else ["nll"]
        networks = [load_onnx(path) for path in instance.paths]
        for score in names:
            with suppress(NoProof):  # softmax rows of one entry leave a contracted product without functions
                yield score_certificate(instance.paths, networks, instance.x, label, region, score)


@exactly
def margins(instance: Instance, label: int, rivals: list[int], fitted: bool = False) -> Certificate:
    """Margins as contracted products and second order prove them, positive or not; the score is easy to prove."""
    proof = Proof(list(instance.paths), instance.x, instance.region.eps, norm_of(instance), instance.region.clip)
    view = proof.networks.logits[0]
    if rivals:
        proof.prepare([view])
        proof.products = "contracted"
        if all(not isinstance(node, Softmax) or node.rows.shape[1] > 1 for node in proof.networks.nodes):
            proof.claim_difference(view, label, rivals[0])
        proof.products = "planes"
        with proof.following(partial(paired, proof)):
            proof.claim_difference(view, label, rivals[0])
        second_order = SecondOrder.claimed(proof, [view], own=fitted)
        for rival in rivals:
            second_order.lead(view, label, rival)
        if any(isinstance(node, Kink) for node in proof.networks.nodes):
            for choose in (bent, kept):
                second_order.lead(view, label, rivals[0], first=partial(choose, proof))
        for rows in ("fitted", "mixed") if fitted else ():
            second_order.lead(view, label, rivals[-1], rows)
    return proof.certificate({"kind": "score", "score": "confidence", "label": label, "bound": 1.0}, None)


@exactly
def cells(instance: Instance, label: int, rival: int) -> Certificate:
    """A margin, positive or not, in cells: two cuts of tensors in the middle of their ranges, and one of the input.

    Some are of differences of two entries; in networks with products the first cell is proved by second order.
    """
    proof = Proof(list(instance.paths), instance.x, instance.region.eps, norm_of(instance), instance.region.clip)
    view, rng = proof.networks.logits[0], np.random.default_rng(0)
    proof.prepare(proof.networks.probabilities)
    tree = Tree(proof, view, label, [rival])
    names = [
        name for name, found in proof.networks.tensors.items() if found.node and not proof.networks.masked(found).any()
    ]
    second_order = any(isinstance(node, Product) for node in proof.networks.nodes)
    waiting = [(Cell(proof.known.region), 0)]
    while waiting:
        cell, depth = waiting.pop()
        part = proof.cell(cell)
        name = names[int(rng.integers(len(names)))] if depth < 2 else None
        found = proof.networks.whole(0) if name is None else proof.networks.tensors[name]
        places = rng.choice(
            found.size, 1 if name is None or found.size == 1 else int(rng.integers(1, 3)), False
        ).tolist()
        lower, upper = (end.ravel()[places] for end in part.known.box(found))
        low, high = float((lower[:1] - upper[1:].sum())[0]), float((upper[:1] - lower[1:].sum())[0])
        if depth == 3 or not low < high or not np.isfinite(high - low):
            on_cuts = rng.choice(MULTIPLIERS, (1, len(cell.cuts)))
            if second_order and not tree.cells:
                SecondOrder.claimed(part, [view], own=True).lead(view, label, rival, on_cuts=on_cuts)
            else:
                part.claim_difference(view, label, rival, on_cuts)
            tree.leaf(part)
            continue
        middle = low + (high - low) / 2
        tree.cut(name, places[0], middle, *places[1:])
        waiting += [(half, depth + 1) for half in reversed(trees.halves(cell, found, places, middle))]
    tree.claim()
    return proof.certificate({"kind": "score", "score": "confidence", "label": label, "bound": 1.0}, None)


def bent(proof: Proof, index: int, A: Any) -> Rule | None:
    """Kinks by parabolas."""
    node = proof.networks.nodes[index]
    return {"slope": np.full((2, node.size), 0.5), "bend": np.full((2, 1), 0.25)} if isinstance(node, Kink) else None


def kept(proof: Proof, index: int, A: Any) -> Rule | None:
    """Kinks that stay in the quadratic, those of positive coefficients as lines."""
    node = proof.networks.nodes[index]
    if not isinstance(node, Kink):
        return None
    pull, (low, high) = A[0].astype(np.float64), proof.known.box(node.x)
    up, share = np.maximum(pull, 0.0), (high > -low).astype(np.float64)
    bent = np.where(high > 0, np.maximum(-pull, 0.0) / np.where(high > 0, high, 1.0), 0.0)
    return {"kept": np.stack(((1 - share) * up, share * up, KEPT * bent))}


def paired(proof: Proof, index: int, A: Balls) -> Rule | None:
    """A product as pairs of functions: singular vectors of its coefficients over the entries of both factors."""
    node = proof.networks.nodes[index]
    if not isinstance(node, Product):
        return None
    views = [proof.networks.whole(view.node) for view in (node.x, node.y)]
    C = np.zeros([view.size for view in views])
    entries = node.x.at(node.left).index.at, node.y.at(node.right).index.at
    np.add.at(C, entries, node.out.of(A.astype(np.float64))[0])
    U, sizes, V = np.linalg.svd(C, full_matrices=False)
    used = sizes > 1e-12 * sizes.max()
    if not used.any():
        return None
    with proof.following(None):
        found = [proof.bound_functions(v, f) for v, f in zip(views, ((U * sizes)[:, used].T, V[used]))]
    left, right = (proof.claim_functions(view, parts) for view, parts in zip(views, found))
    pairs = np.repeat(np.arange(used.sum())[:, None], 2, 1)
    return {"left": left, "right": right, "pairs": pairs, "weight": np.linspace(0.2, 0.8, len(pairs))}


# Forgeries


@dataclass(frozen=True)
class Forgery:
    """A certificate that differs from a seed from step ``first`` on; None: already before its steps."""

    certificate: Certificate
    first: int | None


class Writer:
    """Changes of certificates of one instance, and steps made up for it."""

    def __init__(self, instance: Instance, networks: Networks, pool: Pool, rng: np.random.Generator) -> None:
        self.instance, self.networks, self.pool, self.rng = instance, networks, pool, rng
        self.tensors = list(networks.tensors)
        self.curved = [i for i, n in enumerate(networks.nodes) if isinstance(n, Curve | Kink | Product | Softmax)]
        self.softmaxes = [i for i in self.curved if isinstance(networks.nodes[i], Softmax)]

    def forge(self, seed: Certificate, other: Certificate) -> Forgery:
        """One to three changes of a seed; ``other`` lends its steps."""
        draft = Draft(seed)
        for _ in range(int(self.rng.choice([1, 1, 2, 3]))):
            cut = any(isinstance(step, dict) and "tree" in step for step in draft.steps)
            if cut and self.rng.random() < 0.5:  # what makes a tree false is rare otherwise
                self.change_tree(draft, other)
            else:
                _CHANGES[int(np.searchsorted(_ODDS, self.rng.random() * _ODDS[-1]))][0](self, draft, other)
            if draft.first is None:  # nothing of the head can be relied on any more
                break
        draft.shorten(self.rng, int(self.rng.integers(1, 5)))
        return draft.done()

    # Changes

    def change_number(self, draft: Draft, other: Certificate) -> None:
        places = draft.arrays_of(self._place(draft))
        if places:
            indices = [(h, k) for h, k in places if draft.arrays[h[k]].dtype.kind == "i"]
            holder, key = self._pick(indices if indices and self.rng.random() < 0.3 else places)
            holder[key] = draft.keep(self._changed(draft.arrays[holder[key]]))

    def change_field(self, draft: Draft, other: Certificate) -> None:
        number = self._place(draft)
        holders = draft.holders(number) if number is not None else []
        if not holders:
            return
        holder = self._pick(holders)
        key = self._pick(list(holder) or ["stops"])
        if self.rng.random() < 0.15:
            holder.pop(key, None)
        elif self.rng.random() < 0.5:
            alike = [h[key] for n in range(len(draft.steps)) for h in draft.holders(n) if key in h]
            holder[key] = self._pick(alike) if alike else True
        elif key in ("planes", "keep", "split") or isinstance(holder.get(key), int):
            holder[key] = self._whole(len(draft.steps))
        elif key == "tensor":
            holder[key] = self._pick(self.tensors)
        elif key in FUNCTIONS:
            holder[key] = [self._whole(len(draft.steps)) for _ in range(int(self.rng.integers(0, 3)))]
        else:
            holder[key] = self._pick(STRANGE)

    def change_tree(self, draft: Draft, other: Certificate) -> None:
        """Cells that do not cover, cuts elsewhere, multipliers of any sign, what one cell proves said elsewhere."""
        known = [
            n for n, step in enumerate(draft.steps) if isinstance(step, dict) and isinstance(step.get("tree"), dict)
        ]
        if not known:
            return
        number = self._pick(known)
        tree = draft.touch(number)["tree"]
        entries, values = (np.array(draft.arrays.get(str(tree.get(key)), ())) for key in ("entries", "values"))
        minus = np.array(draft.arrays.get(str(tree.get("minus")), np.full(entries.shape, -1)))
        names, parts = tree.get("tensors"), tree.get("cells")
        if not isinstance(parts, list) or not parts or not isinstance(names, list) or not len(entries):
            return
        if not entries.shape == values.shape == minus.shape:
            return
        place, cell = int(self.rng.integers(len(entries))), int(self.rng.integers(len(parts)))
        cuts = [step for part in parts for step in part if isinstance(step, dict) and "cuts" in step]
        changes = "end end drop swap repeat value entry minus tensor multiply multiply lift none"
        kind = self._pick(changes.split())
        if kind == "end":  # after some cell
            behind = int(np.flatnonzero(np.cumsum(entries < 0) > cell)[:1].sum()) + 1
            entries, values, minus = entries[:behind], values[:behind], minus[:behind]
            tree["tensors"], tree["cells"] = names[:behind], parts[: cell + 1]
        elif kind == "drop":
            entries, values, minus = (np.delete(part, place) for part in (entries, values, minus))
            names.pop(min(place, len(names) - 1))
            parts.pop(cell)
        elif kind == "swap":
            parts.insert(int(self.rng.integers(len(parts))), parts.pop(cell))
        elif kind == "repeat":
            tree["cells"] = [parts[cell]] * len(parts)
        elif kind == "value" and values.size:
            values[place] = self._pick([*NUMBERS, values[place] + self.rng.standard_normal(), values[place] + 0.1])
        elif kind == "entry" and entries.size:
            entries[place] = int(self.rng.integers(-1, entries.max(initial=0) + 3))
        elif kind == "minus":
            minus[place] = self._pick([-1, entries[place], int(self.rng.integers(-1, entries.max(initial=0) + 3))])
        elif kind == "tensor" and names:
            names[place % len(names)] = self._pick([*self.tensors, None])
        elif kind == "multiply" and cuts:
            step = self._pick(cuts)
            held = draft.arrays.get(str(step["cuts"]), np.zeros((1, 1)))
            how = self._pick([held * 10, -held, held * 0, self.rng.choice(MULTIPLIERS, held.shape)])
            step["cuts"] = draft.keep(np.asarray(how, dtype=np.float64))
        elif kind == "lift" and parts[cell]:
            draft.insert(number + 1, self._pick(parts[cell]), fix=False)
        elif kind == "none" and cuts:
            self._pick(cuts).pop("cuts")
        tree["entries"], tree["values"], tree["minus"] = (draft.keep(part) for part in (entries, values, minus))

    def stop(self, draft: Draft, other: Certificate) -> None:
        number = self._place(draft)
        if number is not None:
            draft.touch(number)["stops"] = bool(self.rng.integers(4))

    def one_side(self, draft: Draft, other: Certificate) -> None:
        number = self._place(draft)
        if number is not None:
            self._keep_one_row(draft, number)

    def _keep_one_row(self, draft: Draft, number: int) -> None:
        """One row of a claim, and its lower bound only: what a split asks for."""
        step = draft.touch(number)
        lower = draft.arrays.get(str(step.get("lower")))
        if lower is None or not lower.ndim or not len(lower):
            return
        row = int(self.rng.integers(len(lower)))
        for key in ("lower", "upper", "entries", "rows"):
            held = draft.arrays.get(str(step.get(key)), np.zeros(()))
            if held.ndim and len(held) == len(lower):
                step[key] = draft.keep(held[row : row + 1])
        if "upper" in step:
            step["upper"] = draft.keep(np.array([np.inf]))

    def rewrite_rules(self, draft: Draft, other: Certificate) -> None:
        number = self._place(draft)
        if number is None:
            return
        split = self._splits()
        if split and self.rng.random() < 0.8:
            self._keep_one_row(draft, number)
        step = draft.touch(number)
        sides = [draft.arrays.get(str(step.get(side)), np.full(1, np.inf)) for side in ("lower", "upper")]
        made = self._rules(draft, number, sum(int(np.isfinite(side).sum()) for side in sides), split)
        if self.rng.random() < 0.5:
            step["rules"] = made
        else:
            kept = step["rules"] if isinstance(step.get("rules"), dict) else {}
            step["rules"] = kept | dict([self._pick(list(made.items()))] if made else [])

    def double_planes(self, draft: Draft, other: Certificate) -> None:
        """Planes twice over, here and in the weights of rules that use them."""
        known = [n for n, step in enumerate(draft.steps) if isinstance(step, dict) and step.get("claim") == "planes"]
        if not known:
            return
        number = self._pick(known)
        users = [h for n in range(number, len(draft.steps)) for h in draft.holders(n) if h.get("planes") == number]
        for holder in [draft.touch(number), *users]:
            for side in ("below", "above"):
                held = draft.arrays.get(str(holder.get(side)), np.zeros(()))
                if held.ndim:
                    holder[side] = draft.keep(np.concatenate((held, held)))

    def redirect(self, draft: Draft, other: Certificate) -> None:
        """Planes or functions of another step."""
        number = self._place(draft)
        for holder in draft.holders(number) if number is not None else ():
            for key in [key for key in ("planes", *FUNCTIONS) if key in holder]:
                claim = "planes" if key == "planes" else "functions"
                known = [
                    n for n, step in enumerate(draft.steps) if isinstance(step, dict) and step.get("claim") == claim
                ]
                if known:
                    holder[key] = self._pick(known) if key == "planes" else [self._pick(known)]

    def leave_out(self, draft: Draft, other: Certificate) -> None:
        """A reference that stands for less than a row, or for more."""
        number = self._place(draft)
        for holder in draft.holders(number) if number is not None else ():
            names = np.array(draft.arrays.get(str(holder.get("reference")), np.zeros(())))
            if names.ndim and names.size:
                names.flat[int(self.rng.integers(names.size))] = self._pick([-1, int(self.rng.choice(names.ravel()))])
                holder["reference"] = draft.keep(names)

    def move_rule(self, draft: Draft, other: Certificate) -> None:
        number = self._place(draft)
        rules = draft.touch(number).get("rules") if number is not None else None
        if isinstance(rules, dict) and rules:
            rules[self._pick(self.tensors)] = rules.pop(self._pick(list(rules)))

    def move_steps(self, draft: Draft, other: Certificate) -> None:
        n = len(draft.steps)
        if not n:
            return
        at, to = int(self.rng.integers(n)), int(self.rng.integers(n))
        kind = self._pick(["drop", "swap", "copy", "overwrite"])
        if kind == "drop":
            draft.drop(at, fix=self.rng.random() < 0.8)
        elif kind == "swap":
            draft.touch(min(at, to))
            draft.steps[at], draft.steps[to] = draft.steps[to], draft.steps[at]
        elif kind == "copy":
            draft.insert(to, draft.steps[at], fix=self.rng.random() < 0.8)
        else:
            draft.touch(to)
            draft.steps[to] = draft.steps[at]

    def borrow(self, draft: Draft, other: Certificate) -> None:
        """A step of another proof."""
        if other.header["steps"]:
            step = self._pick(other.header["steps"])
            draft.insert(len(draft.steps), draft.adopt(step, other), fix=False)

    def make_up(self, draft: Draft, other: Certificate) -> None:
        """A few random steps, with what they need before them."""
        for node in self.softmaxes:
            if not self._steps_of(draft, "planes", node) and self.rng.random() < 0.5:
                draft.insert(len(draft.steps), self._planes_step(draft, node), fix=False)
        factors = [view.node for i in self.curved for view in self._factors(i)]
        if factors and self.rng.random() < 0.5:
            step = self._claim(draft, "functions", self.networks.names[self._pick(factors)])
            draft.insert(len(draft.steps), step, fix=False)
        for _ in range(int(self.rng.integers(1, 4))):
            draft.insert(len(draft.steps), self._random_step(draft), fix=False)

    def change_property(self, draft: Draft, other: Certificate) -> None:
        """Mostly statements that are false, some of them hardly."""
        K = self.networks.logits[0].size
        before = draft.header["property"]
        label = before["label"] if type(before.get("label")) is int else 0
        label, less = self._pick([label, int(self.rng.integers(0, K))]), self._pick([1e-9, 1e-3, 0.1])
        made: list[Any] = [
            {"kind": "class", "label": label, "rivals": self.rng.integers(0, K, int(self.rng.integers(1, 3))).tolist()},
            {"kind": "class", "label": label, "rivals": [k for k in range(K) if k != label]},
            other.header["property"],
        ]
        score = self._pick([*SCORES, *[s for s in SCORES if s == before.get("score")] * 3])
        worst = float(self.pool.worst_score(score, label)) if 0 <= label < K and K > 1 else 0.0
        bound = worst + less if score == "margin" else worst - less
        if K > 1 and self.rng.random() < 0.5:
            made += [self._ranges(min(label, K - 1), self._pick([less, -less, 0.0]))] * 3
        found = dict(self._pick([*made, *[{"kind": "score", "score": score, "label": label, "bound": bound}] * 3]))
        if self.rng.random() < 0.2:
            found[self._pick(list(found))] = self._pick(STRANGE)
        draft.header["property"] = found

    def _ranges(self, label: int, less: float) -> Step:
        """What the points of the region say of the probabilities, narrowed by a little in one place."""
        p = self.pool.floats["total"] / len(self.instance.models)
        low, high, K = p.min(0), p.max(0), p.shape[1]
        ahead = np.full(K, -1)
        for k in range(K):
            larger = np.flatnonzero((p > p[:, [k]]).all(0))
            if len(larger) and self.rng.random() < 0.5:
                ahead[k] = int(self.rng.choice(larger))
        place, side = int(self.rng.integers(K)), int(self.rng.integers(4))
        if self.rng.random() < 0.7:  # nothing is said of what is not narrowed
            low, high = np.zeros(K), np.ones(K)
        brier = float(self.pool.worst_score("brier", label)) if side == 2 else 2.0
        if side == 0:
            low[place] = p[:, place].min() + less
        elif side == 1:
            high[place] = p[:, place].max() - less
        elif side == 2:
            brier -= less
        else:
            ahead[place] = int(self.rng.integers(-1, K))
        ends = {"least": np.clip(low, 0, 1).tolist(), "most": np.clip(high, 0, 1).tolist()}
        return {"kind": "ranges", "label": label, **ends, "ahead": ahead.tolist(), "brier": brier}

    def change_region(self, draft: Draft, other: Certificate) -> None:
        region, x = dict(draft.header["region"]), self.instance.x
        key = self._pick(["eps", "norm", "clip", "input", "strange"])
        if key == "eps":
            region["eps"] = self._pick([0.0, region["eps"] * 2, region["eps"] / 2, 1e-30, 1.0, 1e30])
        elif key == "norm":
            region["norm"] = self._pick(["inf", "1", "2"])
        elif key == "clip":
            region["clip"] = self._pick([None, [x.min(), x.max()], [float(x.min()), 10.0], [-1e308, float(x.max())]])
        elif key == "strange":
            region[self._pick(list(region))] = self._pick(STRANGE)
        else:
            changed = np.array(draft.arrays[draft.header["input"]["array"]])
            changed[int(self.rng.integers(changed.size))] += self._pick([0.125, -0.125, 1e-9, 1e9])
            name = draft.keep(changed)
            draft.header["input"] = draft.header["input"] | {"array": name, "sha256": sha256(changed.tobytes())}
        draft.header["region"], draft.first = region, None

    def change_head(self, draft: Draft, other: Certificate) -> None:
        key = self._pick(["models", "input", "region", "property", "steps"])
        part = draft.header[key]
        if isinstance(part, dict) and self.rng.random() < 0.8:
            draft.header[key] = part | {self._pick(list(part)): self._pick(STRANGE)}
        elif key != "steps":
            draft.header[key] = self._pick(STRANGE)
        else:
            draft.steps[:] = self._pick([[], draft.steps[::-1], [None], [{}]])
        draft.first = None

    # The grammar

    def _random_step(self, draft: Draft) -> Step:
        quiet = ["planes", "form", "logits"] if self.softmaxes else []
        claim = self._pick(["entries", "differences", "functions", "score", *quiet, *quiet])
        if claim not in quiet:
            return self._claim(draft, claim, self._pick(self.tensors))
        node = self._pick(self.softmaxes)
        if claim == "planes":
            return self._planes_step(draft, node)
        step = {"claim": claim, "tensor": self.networks.names[node]}
        if claim == "logits" and self.rng.random() < 0.5:
            return step | {"own": 1}
        return step | ({"planes": self._step_of(draft, len(draft.steps), "planes", node)} if claim == "form" else {})

    def _planes_step(self, draft: Draft, node: int) -> Step:
        below, above = (draft.keep(a) for a in self._planes(node))
        return {"claim": "planes", "tensor": self.networks.names[node], "below": below, "above": above}

    def _claim(self, draft: Draft, claim: str, name: str) -> Step:
        """A claim about a tensor; its bounds are to be raised, or not."""
        split = self._splits() and claim != "functions"
        S = 1 if split else int(self.rng.choice([1, 1, 2, 3]))
        n = self.networks.tensors[name].size
        step: Step = {"claim": claim, "tensor": name, "lower": draft.keep(np.full(S, -1.0))}
        sided = not split and (claim == "functions" or self.rng.random() < 0.6)
        step["upper"] = draft.keep(np.full(S, 1.0 if sided else np.inf))
        if claim == "entries":
            step["entries"] = draft.keep(self.rng.integers(0, n, S))
        elif claim == "differences":
            step["entries"] = draft.keep(self.rng.integers(0, n, (S, 2)))
        else:
            n = self.networks.probabilities[0].size if claim == "score" else n
            rows = self._pick([self.rng.standard_normal((S, n)), self.rng.integers(-1, 2, (S, n)).astype(np.float64)])
            step["rows"] = draft.keep(np.eye(n)[self.rng.integers(0, n, S)] if self.rng.random() < 0.3 else rows)
        if claim == "score":
            del step["tensor"], step["upper"]
        wanted = S * (2 if sided and claim != "score" else 1)
        rules = self._rules(draft, len(draft.steps), wanted, split)
        return step | {"stops": bool(self.rng.random() < 0.4), "rules": rules}

    def _splits(self) -> bool:
        """Whether to try second order."""
        quadratic = any(isinstance(self.networks.nodes[i], Product | Kink) for i in self.curved)
        return quadratic and bool(self.rng.random() < 0.4)

    def _factors(self, index: int) -> list[Any]:
        node = self.networks.nodes[index]
        return [node.x, node.y] if isinstance(node, Product) else []

    def _rules(self, draft: Draft, number: int, wanted: int, split: bool) -> dict[str, Any]:
        """A rule for every node that asks for one, in a walk with so many rows."""
        found: dict[str, Any] = {}
        for index in self.curved:
            rule = self._rule(draft, number, index, wanted, split)
            found[self.networks.names[index]] = {
                key: draft.keep(value) if isinstance(value, np.ndarray) else value for key, value in rule.items()
            }
        if split:
            found[self.networks.names[0]] = {
                "multipliers": draft.keep(np.full(1, 10.0 ** self.rng.uniform(-2, 2))),
                "point": draft.keep(self._pick([np.zeros(1), self.rng.uniform(-1, 1, 1)])),
            }
        return found

    def _rule(self, draft: Draft, number: int, index: int, wanted: int, split: bool) -> Step:
        node = self.networks.nodes[index]
        if isinstance(node, Kink) and split and self.rng.random() < 0.5:
            if self.rng.random() < 0.5:
                found = self.rng.uniform(0, 1, (3, node.size)) * self.rng.choice([0.0, 0.1, 1.0], (3, 1))
                found[2] *= self._pick([1.0, -1.0])
                return {"kept": found if self.rng.random() < 0.9 else -found}
            slope = self._pick([self.rng.uniform(0, 1, (2, node.size)), self.rng.standard_normal((2, node.size))])
            return {"slope": slope, "bend": 10.0 ** self.rng.uniform(-2, 1, (2, node.size))}
        if isinstance(node, Kink):
            return {"slope": self._shares(node.size)}
        if isinstance(node, Curve):
            slopes = [self._shares(node.size), self.rng.standard_normal(node.size), np.zeros(node.size)]
            return {side: self._pick(slopes) for side in ("below", "above")}
        if isinstance(node, Softmax):
            R, K = node.rows.shape
            if split and K > 1 and self.rng.random() < 0.4:
                return self._fit(R, K) | (self._lines(R, K) if self.rng.random() < 0.5 else {})
            rule: Step = {"planes": self._step_of(draft, number, "planes", index)}
            rule["multiplier"] = self._pick([np.zeros((1, R)), self.rng.standard_normal((1, R))])
            for side in ("below", "above"):
                P = draft.length(rule["planes"], side)
                rule[side] = self._shares(P, R, K) / (max(P, 1) if self.rng.random() < 0.8 else 1)
            return rule
        assert isinstance(node, Product)
        if split:
            factor = int(self.rng.integers(2))
            return {"split": factor, **self._reference(node, factor)} | (
                {"mixed": 1} if self.rng.random() < 0.5 else {}
            )
        keep = int(self.rng.integers(2))
        useful = bool(self._steps_of(draft, "functions", (node.y, node.x)[keep].node))
        if self.rng.random() < (0.3 if useful else 0.9):
            return {"below": self._shares(node.size), "above": self._shares(node.size)}
        if self.rng.random() < 0.4:
            sides = [self._step_of(draft, number, "functions", view.node) for view in (node.x, node.y)]
            N = int(self.rng.integers(1, 6))
            pairs = self.rng.integers(0, [max(draft.length(n, "rows"), 1) for n in sides], (N, 2))
            return {"left": sides[:1], "right": sides[1:], "pairs": pairs, "weight": self._shares(N)}
        kept, other = (node.x, node.y) if keep == 0 else (node.y, node.x)
        steps = [self._step_of(draft, number, "functions", other.node)]
        most = max(draft.length(steps[0], "rows"), 1)
        rule = {"keep": keep, "functions": steps, "weight": self._shares(1, kept.size)}
        rule["rows"] = self.rng.integers(0, most, (wanted, kept.size))
        return rule | self._reference(node, keep)

    def _fit(self, R: int, K: int) -> Step:
        """Quadratics of rows; some are as high as the rows themselves."""
        slope = self._pick([0.1, 1.0]) * self.rng.normal(size=(R, K - 1))
        bent = self._pick([0.0, 0.0, 0.1, 1.0]) * self.rng.normal(size=(R, K - 1, K - 1))
        value = self.rng.uniform(-1.5, 1, R) if self.rng.random() < 0.7 else np.full(R, -5.0)
        origin = self._pick([0.0, 1.0]) * self.rng.normal(size=(R, K - 1))
        rule = {"fit": self.rng.integers(0, K, R), "origin": origin, "slope": slope, "matrix": bent, "value": value}
        return rule | ({"weights": self.rng.normal(size=(R, K))} if self.rng.random() < 0.3 else {})

    def _lines(self, R: int, K: int) -> Step:
        """Lines beside probabilities that mix values."""
        price, met = (
            10.0 ** self.rng.uniform(-2, 2, (R, K - 1)),
            self._pick([0.0, 1.0]) * self.rng.normal(size=(R, K - 1)),
        )
        lines = self._pick([0.0, 0.2]) * self.rng.normal(size=(R, K - 1, K - 1))
        return {"price": price, "level": self.rng.uniform(0, 1, (R, K - 1)), "lines": lines, "met": met}

    def _reference(self, node: Product, side: int) -> Step:
        view = (node.x, node.y)[side]
        source = self.networks.nodes[view.node]
        if not isinstance(source, Softmax) or self.rng.random() < 0.4:
            return {}
        names = np.full(view.size, -1)
        for row in source.outputs.at:
            members = np.flatnonzero(np.isin(view.index.at.ravel(), row))
            if len(members):
                names[members] = self.rng.choice(members)
        if self.rng.random() < 0.4:
            names[int(self.rng.integers(len(names)))] = self._pick([-1, int(self.rng.integers(len(names)))])
        return {"reference": names}

    def _planes(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        node = self.networks.nodes[index]
        assert isinstance(node, Softmax)
        R, K = node.rows.shape
        P, Q = (int(n) for n in self.rng.choice([0, 1, 1, 1, 2], 2))
        below = np.empty((P, R, K, 4))
        below[..., 0] = self.rng.integers(-1, K, (P, R, K))
        below[..., 1] = np.where(below[..., 0] < 0, 0.0, self._shares(P, R, K))
        below[..., 2] = self.rng.uniform(0, 0.25, (P, R, K))
        below[..., 3] = 10 ** self.rng.uniform(-2, 1, (P, R, K))
        above = self.rng.uniform(0, 0.25, (Q, R, K, K)) * self.rng.choice([0.0, 0.3, 1.0], (Q, R, K, 1))
        return below, above

    def _step_of(self, draft: Draft, number: int, claim: str, node: int) -> int:
        """An earlier step of a kind about a node; any number where there is none, and now and then anyway."""
        known = self._steps_of(draft, claim, node)
        if known and self.rng.random() < 0.95:
            return int(self._pick(known[-3:]))
        return int(self.rng.integers(0, number + 2))

    def _steps_of(self, draft: Draft, claim: str, node: int) -> list[int]:
        names = {name for name, view in self.networks.tensors.items() if view.node == node}
        return [
            number
            for number, step in enumerate(draft.steps)
            if isinstance(step, dict) and step.get("claim") == claim and str(step.get("tensor")) in names
        ]

    # Small things

    def _shares(self, *shape: int) -> np.ndarray:
        kind = self.rng.random()
        if kind < 0.25:
            return self.rng.integers(0, 2, shape).astype(np.float64)
        if kind < 0.5:
            return np.full(shape, self.rng.random())
        return self.rng.uniform(0, 1, shape) if kind < 0.95 else self.rng.uniform(-1, 2, shape)

    def _whole(self, most: int) -> Any:
        return self._pick([0, 1, int(self.rng.integers(0, max(most, 1))), -1, most, 0.9, True, 10**20])

    def _pick(self, items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def _place(self, draft: Draft) -> int | None:
        """Mostly one of the last steps."""
        n = len(draft.steps)
        if not n:
            return None
        place = n - int(self.rng.geometric(0.4)) if self.rng.random() < 0.7 else int(self.rng.integers(n))
        return max(place, 0)

    def _changed(self, array: np.ndarray) -> np.ndarray:
        """An array with a few numbers, its order or its shape changed."""
        found = np.array(array)
        kind = self.rng.random()
        if not found.size or kind < 0.06:
            return self._pick([found[:-1] if found.ndim else found, found[None], found.ravel(), found.reshape(-1, 1)])
        if kind < 0.09:
            return found.astype(np.float64 if found.dtype.kind == "i" else np.int64, casting="unsafe") if np.isfinite(
                found
            ).all() and np.abs(found).max() < 1e9 else found  # fmt: skip
        if kind < 0.12:
            return np.concatenate((found, found)) if found.ndim else found
        flat = found.reshape(-1)
        if kind < 0.25:
            return np.asarray(self.rng.permutation(flat).reshape(found.shape))
        for place in self.rng.integers(0, flat.size, int(self.rng.choice([1, 1, 2, flat.size]))).tolist():
            if found.dtype.kind == "i":
                high = int(max(flat.max(), 1)) + 2
                flat[place] = self._pick([int(self.rng.integers(-1, high)), flat[0], flat[-1], 1 << 62, -(1 << 62)])
            else:
                v = float(flat[place])
                near = [v + 1e-6, v - 1e-6, v * 2, v / 2, -v, v + self.rng.standard_normal(), self.rng.random()]
                flat[place] = self._pick([*near, *near, self._pick(NUMBERS)])
        return found


def own_copy(value: Any) -> Any:
    """A copy of which nothing is shared, not even where one thing stands in it twice."""
    if isinstance(value, dict):
        return {key: own_copy(v) for key, v in value.items()}
    return [own_copy(v) for v in value] if isinstance(value, list) else value


class Draft:
    """A certificate in the making; what it shares with its seed is never written to."""

    def __init__(self, seed: Certificate) -> None:
        self.header, self.arrays = dict(seed.header), dict(seed.arrays)
        self.steps: list[Any] = list(seed.header["steps"])
        self.first: int | None = len(self.steps)

    def touch(self, number: int) -> Step:
        """A step that may be changed."""
        self._from(number)
        step = self.steps[number]
        if not isinstance(step, dict):
            return {}
        self.steps[number] = own_copy(step)
        found: Step = self.steps[number]
        return found

    def holders(self, number: int) -> list[Step]:
        """The step itself, its rules, its tree and the steps of its cells, ready to be changed."""
        tree = (step := self.touch(number)).get("tree")
        found = [step]
        if isinstance(tree, dict):
            cells = tree["cells"] if isinstance(tree.get("cells"), list) else []
            found += [tree, *(own for cell in cells if isinstance(cell, list) for own in cell if isinstance(own, dict))]
        rules = [holder["rules"] for holder in found if isinstance(holder.get("rules"), dict)]
        return [*found, *(rule for each in rules for rule in each.values() if isinstance(rule, dict))]

    def arrays_of(self, number: int | None) -> list[tuple[Step, str]]:
        if number is None:
            return []
        return [
            (holder, key)
            for holder in self.holders(number)
            for key, value in holder.items()
            if isinstance(value, str) and value in self.arrays
        ]

    def length(self, number: int, key: str) -> int:
        """How many rows an array of a step has; 1 where there is none."""
        step = self.steps[number] if number < len(self.steps) else None
        held = self.arrays.get(str(step.get(key)), np.zeros(1)) if isinstance(step, dict) else np.zeros(1)
        return len(held) if held.ndim else 1

    def keep(self, array: np.ndarray) -> str:
        name = f"b{len(self.arrays)}"
        while name in self.arrays:
            name += "'"
        self.arrays[name] = array
        return name

    def adopt(self, step: Any, other: Certificate) -> Any:
        """A step of another certificate with its arrays under new names."""
        names: dict[str, str] = {}

        def renamed(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: renamed(v) for key, v in value.items()}
            if isinstance(value, str) and value in other.arrays:
                if value not in names:
                    names[value] = self.keep(other.arrays[value])
                return names[value]
            return value

        return renamed(step)

    def insert(self, at: int, step: Any, fix: bool) -> None:
        self._from(at)
        self.steps.insert(at, step)
        if fix:
            self._renumber(lambda n: n + 1 if n >= at else n, at)

    def drop(self, at: int, fix: bool = True) -> None:
        self._from(at)
        del self.steps[at]
        if fix:
            self._renumber(lambda n: n - 1 if n > at else n, at)

    def _renumber(self, new: Callable[[int], int], start: int) -> None:
        for number in range(start, len(self.steps)):
            for holder in self.holders(number):
                if type(holder.get("planes")) is int:
                    holder["planes"] = new(holder["planes"])
                for key in FUNCTIONS:
                    if isinstance(holder.get(key), list):
                        holder[key] = [new(n) if type(n) is int else n for n in holder[key]]

    def _from(self, number: int) -> None:
        if self.first is not None:
            self.first = min(self.first, number)

    def shorten(self, rng: np.random.Generator, most: int) -> None:
        """Leave out steps behind the first change, so that a forgery costs little to check."""
        first = 0 if self.first is None else self.first
        while len(self.steps) > first + most:
            self.drop(int(rng.integers(first + 1, len(self.steps))))

    def done(self) -> Forgery:
        self.header["steps"] = self.steps
        return Forgery(Certificate(self.header, self.arrays), self.first)


_CHANGES: list[tuple[Callable[[Writer, Draft, Certificate], None], float]] = [
    (Writer.change_number, 0.26),
    (Writer.change_field, 0.12),
    (Writer.stop, 0.08),
    (Writer.one_side, 0.08),
    (Writer.rewrite_rules, 0.12),
    (Writer.double_planes, 0.04),
    (Writer.redirect, 0.06),
    (Writer.leave_out, 0.08),
    (Writer.move_rule, 0.02),
    (Writer.move_steps, 0.08),
    (Writer.borrow, 0.08),
    (Writer.make_up, 0.2),
    (Writer.change_property, 0.1),
    (Writer.change_region, 0.03),
    (Writer.change_head, 0.01),
]
_ODDS = np.cumsum([odds for _, odds in _CHANGES])
