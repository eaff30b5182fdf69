"""The stages of walks, in the order of their cost: forms, linear walks, the attack, second order, gradient steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from ..errors import InvalidInput
from ..graph.operator import Bilinear, Elementwise
from ..graph.ops.normalize import Normalized
from ..graph.ops.relu import Relu
from ..graph.ops.softmax import Softmax
from ..propagate.account import account
from ..propagate.crown import LinearBounds
from ..propagate.knowledge import Knowledge
from ..propagate.methods import Auto, FirstLook, Linear, Paper, SecondOrder
from ..propagate.optimize import with_better_differences
from ..propagate.products import prepare_jointly
from ..propagate.quadratic_forms import output_form, worth_quadratic_forms
from ..propagate.second_order.rules import NoAffineForms
from ..propagate.structure import pieces
from ..propagate.token_balls import known_by_token_balls, worth_balls
from ..propagate.zonotopes import dear_walks, known_by_forms, worth_forms
from .engine import Work, stages
from .ensemble import Ensemble, Joined, Layered, join
from .programs import Members, taken
from .walks import (
    CONTRACTED,
    FITTED,
    FORMS,
    FUNCTIONS,
    GRADIENT,
    LINEAR,
    QUADRATIC,
    SPREAD,
    SQUARES,
    Kept,
    Proving,
    Quadratics,
    Shortened,
    Walks,
    instances_together,
)

if TYPE_CHECKING:
    from .margins import Margins

# Entries of all nodes up to which functions between activations are looked at without being asked to hurry.
SMALL = 1 << 13
# What activations lose is looked at alone where it is this share of all.
MOSTLY = 0.5
# A bound is settled where all that is left to gain is this share of the score that the attack reaches: a question about
# classes ends with its proof, but one about a score would go on through every stage for digits that nobody reads.
SETTLED = 1e-3
# Forms come close where they miss a proof by this share of the margin.
CLOSE = 0.5
# Affine forms met with walks, which are told apart by how they are made alone.
WALKED = "walked forms"


@stages.register(Linear)
@stages.register(Paper)
def _(method: Linear | Paper, work: Work) -> Iterator[Walks]:
    if isinstance(method, Linear):
        yield from by_forms(work, method, alone=isinstance(method, FirstLook))
        if not len(work.instances):
            return
    walks = linear_walks(work, method)
    yield walks
    if isinstance(method, Linear) and not isinstance(method, FirstLook):
        yield from by_spread(work, method, walks)
    if method.contract:
        yield walks.among(work.open(), CONTRACTED)
    work.attack_open()
    if isinstance(method, Linear) and not isinstance(method, FirstLook):
        yield from by_squares(work, method)
    if isinstance(method, Linear) and method.optimize:
        yield from by_gradient(work, method, walks)


@stages.register(SecondOrder)
def _(method: SecondOrder, work: Work) -> Iterator[Walks]:
    walks = linear_walks(work, method.linear)
    yield walks
    work.attack_open()
    if networks_of(work).products:
        yield from second_order(work, walks, method)
    else:
        everyone = walks.instances.tolist()
        work.note(everyone, "linear bounds only: the network has no products of variable tensors")


@stages.register(Auto)
def _(method: Auto, work: Work) -> Iterator[Walks]:
    work.tolerance = SETTLED
    if not networks_of(work).products:
        yield from stages(method.linear, work)
        small = work.claims.ends and all(worth_functions(each) for each in networks_of(work).graphs)
        if small and len(left := work.open()):
            yield from by_functions(work, linear_walks(work, method.linear, left))
        return
    # Fitted rows gain a few percent of a score at ten times the cost: only for those who ask for them.
    second = method.second_order if work.claims.ends else replace(method.second_order, row_fit=False)
    yield from by_forms(work, second.linear)
    if not len(work.instances):
        return
    walks = linear_walks(work, second.linear)
    yield walks
    work.attack_open()
    curved, moving = worth_it(work, walks) if work.claims.ends else (None, None)
    yield from by_spread(work, second.linear, walks, ends=True)
    yield from by_squares(work, second.linear)
    before = work.claims.least(work.found)
    if work.claims.ends and work.effort.deadline < math.inf:  # a time limit says that somebody waits
        yield from by_functions(work, walks)
    yield from second_order(work, walks, second, curved, method.optimize > 0)
    if method.optimize:
        stayed = ~(work.claims.least(work.found) > before)
        yield from by_gradient(work, method.linear, None, stayed if moving is None else stayed & moving)


@taken.register(Linear)
@taken.register(SecondOrder)
def _as_walks(method: Linear | SecondOrder | Auto, given: Members) -> tuple[Joined, Any]:
    """One graph of all networks, or one each where they are separate."""
    if given.bound != "all":
        if given.softmax.lower != given.softmax.upper:
            line = f"bound {given.bound!r}: networks with attention take one bound for both sides, such as hull"
            raise InvalidInput(line)
        method = replace(method, bound=given.softmax.lower[0])
    whole = join(given.graphs, given.labels)
    networks = Joined(whole.alone if given.separate else (whole,))
    return networks.to(given.device), replace(method, rounding=given.rounding)


@taken.register(Auto)
def _(method: Auto, given: Members) -> tuple[Joined | Layered, Any]:
    """Only networks that are not feedforward are left to walks."""
    return taken(given.program, given) if given.feedforward else _as_walks(method, given)


def worth_it(work: Work, walks: Walks) -> tuple[Tensor, Tensor]:
    """Masks ``[B]``: of the instances that second order may prove, and of those that gradient steps may.

    The account of the worst open row of every instance says what is lost where. Second order takes products as they
    are, and what comes after them by better intervals; gradient steps move lines, planes and mixtures. What neither
    touches stays lost, and so does what normalisations lose, which is the width of what they take in: where that alone
    keeps the bound from being positive, they are left out.
    """
    curved = torch.zeros_like(work.found.attack, dtype=torch.bool)
    claims, (bounds,) = cast("Margins", work.claims), walks.bounds  # only they have ends, and of one network
    row, instance = claims.worst_rows(work.found)
    rows = claims.rows[row, instance].reshape(-1, *bounds.graph.output_shape)
    found = account(bounds, rows, walks.places(instance))
    first = min(i for i, node in enumerate(bounds.graph.nodes) if isinstance(node.operator, Bilinear))
    gap = claims.offsets[row, instance] - found.bound
    relaxed, apart = (Bilinear, Softmax, Elementwise), (Normalized,)
    by_steps = found.lost(relaxed, apart)
    by_products = found.lost(relaxed, apart, first - 1)
    moving = curved.clone()
    # A loss that is not a number says nothing against trying.
    curved[instance], moving[instance] = ~(by_products <= gap), ~(by_steps <= gap)
    for k in (by_products <= gap).nonzero()[:, 0].tolist():
        name, most = found.dearest(k)
        line = f"linear bounds only: {float(gap[k]):.2g} is missing, and what other methods improve costs"
        work.note([int(instance[k])], f"{line} {float(by_products[k]):.2g} ({name} costs {most:.2g})")
    return curved, moving


def by_forms(work: Work, method: Linear, alone: bool = True) -> Iterator[Walks]:
    """Walks on the output alone, with all else by affine forms, instance by instance, where that is much less work.

    What they prove is not looked at again. Where other walks take minutes they are left out if forms may stand
    ``alone``: then come quadratic forms, unless it is a first look, and where affine ones come close these are met with
    walks for their widest entries. Where forms do not fit the memory there are those over balls; then walks are left
    out of a first look, and if they would not even reach the input. There is no certificate of what forms prove.
    """
    graphs, effort = networks_of(work).graphs, work.effort
    if effort.proofs or not work.claims.ends or len(graphs) != 1:
        return
    (each,), claims = graphs, cast("Margins", work.claims)  # only they have ends
    left_out, attacked = [], False
    for one in pieces(work.instances, 1):
        output = each.graph(work.found.worst[one]).flatten(1)
        margin = float(((claims.rows[:, one] * output).sum(-1) - claims.offsets[:, one]).amin())
        region = work.problem.region.take(one)
        start = LinearBounds(each.graph, region, method, each.structure, effort.memory, effort.deadline)
        few, many = worth_forms(start), worth_balls(start)
        if not (few or many):
            return
        dear = alone and dear_walks(start)
        for kind in (FORMS, WALKED) if few else ():
            if kind == WALKED:
                if not dear:
                    break
                if not isinstance(method, FirstLook):
                    if not attacked and worth_quadratic_forms(start):  # which takes much less
                        work.attack_open()
                        attacked = True
                    yield from by_squares(work, method, one)
                least = float(claims.least(work.found)[one])
                if not (torch.isin(one, work.open()) and least > -CLOSE * margin):
                    break
            bounds = start.knowing(Knowledge(each.structure))
            try:
                known_by_forms(bounds, kind == WALKED)
            except (NoAffineForms, torch.linalg.LinAlgError):
                break
            many = False
            yield Walks(graphs, one, (bounds,), (FORMS,))
            if dear and kind == FORMS:
                left_out.append(one)
        if not many:
            continue
        try:
            known_by_token_balls(start)
        except (NoAffineForms, torch.linalg.LinAlgError):
            continue
        yield Walks(graphs, one, (start,), (FORMS,))
        if alone and (isinstance(method, FirstLook) or not each.structure.reaches_input):
            left_out.append(one)
    left = torch.cat([*left_out, work.instances[:0]])
    work.instances = work.open()
    if len(left):
        work.note(left[torch.isin(left, work.instances)].tolist(), "forms only: other walks would take minutes")
        work.attack_open()
        work.instances = work.instances[~torch.isin(work.instances, left)]


def by_squares(work: Work, method: Linear, instances: Tensor | None = None) -> Iterator[Walks]:
    """Quadratic forms for what is still open, instance by instance, where few inputs move.

    There is no certificate of what they prove.
    """
    graphs, effort = networks_of(work).graphs, work.effort
    if effort.proofs or not work.claims.ends or len(graphs) != 1:
        return
    left = work.open() if instances is None else instances[torch.isin(instances, work.open())]
    for one in pieces(left, 1):
        (each,), region = graphs, work.problem.region.take(one)
        bounds = LinearBounds(each.graph, region, method, each.structure, effort.memory, effort.deadline)
        if not worth_quadratic_forms(bounds):
            return
        with suppress(NoAffineForms, torch.linalg.LinAlgError), closing(output_form(bounds)):
            yield Walks(graphs, one, (bounds,), (SQUARES,))


def worth_functions(each: Ensemble) -> bool:
    """Whether functions between activations take next to nothing: a small network whose activations are rectifiers."""
    relaxed = [node.operator for node in each.graph.nodes if isinstance(node.operator, Elementwise)]
    small = each.structure.volume(len(each.graph.nodes) - 1) <= SMALL
    return small and bool(relaxed) and all(isinstance(operator, Relu) for operator in relaxed)


def by_functions(work: Work, walks: Walks) -> Iterator[Walks]:
    """Gradient steps on the lines of activations where these lose most, then all rectifiers together.

    There is no certificate of what that proves: runs that keep proofs do without it.
    """
    if work.effort.proofs:
        return
    claims, (bounds,) = cast("Margins", work.claims), walks.bounds
    row, instance = claims.worst_rows(work.found)
    found = account(bounds, claims.rows[row, instance].reshape(-1, *bounds.graph.output_shape), walks.places(instance))
    left = instance[found.lost((Elementwise,)) >= MOSTLY * (found.value - found.bound)].sort().values
    if len(left):
        yield Shortened(walks.graphs, left, walks.among(left).bounds, (FUNCTIONS,))


def by_spread(work: Work, method: Linear, walks: Walks, ends: bool = False) -> Iterator[Walks]:
    """The same walks once more, with products by how the lines of their factors move together.

    Only where products and probabilities lose more than what is missing. Other stages do not build on it, as tighter
    intervals lead gradient steps and fits elsewhere, not always to better bounds. ``ends``: nor do rows that it leaves
    open change, so that those that are dear are tried in the order they have without it. There is no certificate of
    what it proves: runs that keep proofs do without it.
    """
    if work.effort.proofs or not (work.claims.ends and networks_of(work).products) or len(walks.graphs) != 1:
        return
    claims, (bounds,) = cast("Margins", work.claims), walks.bounds
    row, instance = claims.worst_rows(work.found)
    here = torch.isin(instance, walks.instances)
    row, instance = row[here], instance[here]
    found = account(bounds, claims.rows[row, instance].reshape(-1, *bounds.graph.output_shape), walks.places(instance))
    lost, missing = found.lost((Bilinear, Softmax), (Normalized,)), claims.offsets[row, instance] - found.bound
    left = instance[~(lost <= missing)].sort().values  # a loss that is not a number says nothing against trying
    if len(left):
        again = linear_walks(work, replace(method, contract=False), left, joint=True)
        kind = Proving if ends else Walks
        yield kind(again.graphs, left, again.bounds, (SPREAD,))


def second_order(
    work: Work, walks: Walks, method: SecondOrder, among: Tensor | None = None, ascend: bool = False
) -> Iterator[Walks]:
    """What second order adds to linear walks, on as many instances at once as fit, all or those of a mask ``[B]``.

    ``ascend``: in the end by gradient steps on what is free in the quadratics.
    """
    together = min(instances_together(bounds) for bounds in walks.bounds)
    for part in pieces(work.open(among), together):
        stage = Quadratics.after(work, walks.among(part), method)
        if stage is None:
            continue
        if not work.claims.ends:
            yield stage
            continue
        # Fits of rows are dear: better intervals go first, where a proof may end the work.
        yield replace(stage, ways=(QUADRATIC,))
        sharper = stage.sharpened(work)
        if sharper is not None:
            yield replace(sharper, ways=(QUADRATIC,))
        if FITTED in stage.ways and sharper is not None:
            yield sharper
        elif FITTED in stage.ways:
            # One by one: the noise of an instance alone is less than that of a batch, and takes better multipliers.
            for one in pieces(part[torch.isin(part, work.open(among))], 1):
                alone = Quadratics.after(work, walks.among(one), method) if len(part) > 1 else stage
                if alone is not None:
                    yield alone
        if ascend:
            yield from (sharper or stage).bent(work)
            ascended = (sharper or stage).ascended(work)
            if ascended is not None:
                yield ascended


def by_gradient(work: Work, method: Linear, walks: Walks | None, among: Tensor | None = None) -> Iterator[Walks]:
    """Gradient steps on the free parameters of linear bounds, first for logit differences, then for the rows.

    ``walks`` are those of the method on all instances, as far as it was used before.
    """
    # Steps start from the mean of the two planes of a product. One of them alone may be far better, by where the
    # factors sit in their intervals (probabilities near 0), and is tried first where that may be the proof.
    for mixture in (1.0, 0.0) if networks_of(work).products and work.claims.ends else ():
        if len(left := work.open(among)):
            yield linear_walks(work, replace(method, mixture=mixture, contract=False), left)
    if walks is None and len(left := work.open(among)):
        walks = linear_walks(work, method, left)
        yield walks.among(left, CONTRACTED)
    if walks is not None and len(left := work.open(among)):
        steps, tightened = max(1, method.optimize // 2), walks.among(left, CONTRACTED, GRADIENT)
        kept = Kept() if work.effort.proofs else None
        apart = None if kept is None else kept.apart
        better = [with_better_differences(bounds, steps, method.learning_rate, apart) for bounds in tightened.bounds]
        yield replace(tightened.knowing(better, work.found.worst[left]), kept=kept)


def linear_walks(work: Work, method: Linear | Paper, instances: Tensor | None = None, joint: bool = False) -> Walks:
    """Linear walks for some instances; where they are not named, a first look at all.

    ``joint``: products know how the lines of their factors move together.
    """
    here, region = work.instances if instances is None else instances, work.problem.region
    whole = len(here) == region.size
    region = region if whole else region.take(here)
    graphs, found, effort = networks_of(work).graphs, [], work.effort
    known = work.found.knowledge or tuple(Knowledge(each.structure) for each in graphs)
    for each, start in zip(graphs, known):
        start = (start if whole else start.take(here)).handed_on()
        bounds = LinearBounds(each.graph, region, method, each.structure, effort.memory, effort.deadline, start, joint)
        bounds.check_time()
        bounds.prepare(len(each.graph.nodes) - 1)
        for index in each.softmaxes:
            bounds.differences(index)
        if joint:
            prepare_jointly(bounds)
        found.append(bounds)
    if whole and not joint:
        work.found.knowledge = tuple(bounds.knowledge.handed_on() for bounds in found)
    walks = Walks(graphs, here, tuple(found), (LINEAR,), instances is None)
    return walks.knowing(found, work.found.worst[here])


def networks_of(work: Work) -> Joined:
    """The networks of a problem as joint graphs."""
    assert isinstance(work.problem.networks, Joined)
    return work.problem.networks
