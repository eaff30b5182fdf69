"""What a certificate states, all of it: about which models, which input, which region, and what is said of them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import one_line, quoted
from .certificate import CertificateError, Refused

NORMS = ("inf", "2", "1")


@dataclass(frozen=True)
class Statement:
    """``index`` is what the certificate says; the data file confirms it where ``data`` is named."""

    models: tuple[tuple[str, str], ...]  # as named by the caller, with their SHA-256 sums
    index: int | None
    input_sha256: str
    data: str | None
    eps: float | None
    norm: str
    clip: tuple[float, float] | None
    property: dict[str, Any]
    more: tuple[tuple[str, str], ...] = ()  # what else the region is made of, in words
    moving: tuple[int, int] = (0, 0)  # entries of the input that can move, of all
    single_input: bool = False  # the region holds nothing but the input itself
    conclusion: str = ""

    def demand(
        self,
        index: int | None = None,
        eps: float | None = None,
        norm: str | float | None = None,
        clip: Sequence[float] | None = None,
        label: int | None = None,
    ) -> None:
        """Refuse a statement about anything else than what is wanted; None wants nothing."""
        wanted = {
            "index": (index, self.index),
            "eps": (None if eps is None else float(eps), self.eps),
            "norm": (None if norm is None else norm_name(norm), self.norm),
            "clip": (None if clip is None else tuple(float(end) for end in clip), self.clip),
            "label": (label, self.property["label"]),
        }
        if self.more and any(wanted[name][0] is not None for name in ("eps", "norm", "clip")):
            raise Refused(f"a plain region is demanded, the certificate is about one with {self.more[0][0]}")
        for name, (value, stated) in wanted.items():
            if value is not None and value != stated and not (name == "index" and stated is None and self.data):
                raise Refused(f"{name} {value} is demanded, the certificate is about {name} {quoted(stated)[1:-1]}")

    def concluded(self, conclusion: str, property: dict[str, Any], moving: int, entries: int) -> Statement:
        """The statement with what was proved in the end, and how many entries of the input may move."""
        moves = (moving, entries)
        return replace(self, conclusion=conclusion, property=property, moving=moves, single_input=not moving)

    def __str__(self) -> str:
        where = "for every input of the region"
        if self.single_input:
            where = f"AT THIS ONE INPUT ONLY, nothing around it is covered (eps = {self.eps!r})"
        origin = "" if self.data is not None else "; the input was taken from the certificate"
        return f"{self.conclusion} {where}{origin}"

    def lines(self) -> list[str]:
        """The parts, one line for each."""
        which = "an input without index" if self.index is None else f"input {self.index}"
        source = (
            f"compared with {self.data}" if self.data is not None else "as the certificate says, NOT compared with data"
        )
        found = [f"model: {name}, sha256 {digest}" for name, digest in self.models]
        found.append(f"input: {which}, {source}; sha256 {self.input_sha256}")
        shape = f"eps = {self.eps!r} in the l_{self.norm} norm"
        if self.eps is None:
            shape = "all of the alternatives" if "options" in dict(self.more) else "all within the limits"
        found.append(f"region: {shape}{describe_clip(self.clip)}")
        found.extend(f"region, {name}: {words}" for name, words in self.more)
        if self.more:
            found.append(f"region, moving: {self.moving[0]} of {self.moving[1]} entries of the input")
        found.append(f"property: {self.conclusion}")
        return [one_line(line) for line in found]

    def to_dict(self) -> dict[str, Any]:
        """The statement as plain values."""
        source = {"from": "certificate" if self.data is None else "data", "data": self.data}
        return {
            "models": [{"file": name, "sha256": digest} for name, digest in self.models],
            "input": {"index": self.index, "sha256": self.input_sha256, **source},
            "region": {
                "eps": self.eps,
                "norm": self.norm,
                "clip": None if self.clip is None else list(self.clip),
                **dict(self.more),
                "moving": self.moving[0],
                "single_input": self.single_input,
            },
            "property": self.property,
            "text": one_line(str(self)),
        }


def read_statement(
    header: dict[str, Any],
    models: Sequence[str | Path],
    digests: Sequence[str],
    data: str | Path | None,
    arrays: Mapping[str, Any] | None = None,
) -> Statement:
    """What a header states; Refused where it is about other models, or no statement at all."""
    read_models(header, models, digests)
    index, property = header["input"].get("index"), header["property"]
    if not (index is None or (whole(index) and index >= 0)) or not isinstance(property, dict):
        raise CertificateError("malformed: no index or no property")
    more = _more(header["region"], arrays or {})
    eps, norm, clip = read_region(header["region"], plain=not more)
    if not whole(property["label"]) or property["label"] < 0:
        raise Refused(f"label {quoted(property['label'])} is no class")
    return Statement(
        tuple((str(path), digest) for path, digest in zip(models, digests)),
        index,
        str(header["input"]["sha256"]),
        None if data is None else str(data),
        eps,
        norm,
        clip,
        property,
        more,
    )


# What a region may be made of beside radius, norm and clip range.
PARTS = {
    "scale": "units of the entries in the norm",
    "low": "lower limits",
    "high": "upper limits",
    "options": "alternatives",
    "positions": "the positions of the alternatives",
}


def _more(region: dict[str, Any], arrays: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The parts of a region in words, arrays by their size and their SHA-256 sum; Refused where one is not known."""
    found = []
    for name in sorted(set(region) - {"eps", "norm", "clip"}):
        if name == "at_most" and (region[name] is None or whole(region[name])):
            found.append((name, "any number of positions" if region[name] is None else f"{region[name]} positions"))
        elif name in PARTS and isinstance(region[name], str) and region[name] in arrays:
            values = arrays[region[name]]
            digest = hashlib.sha256(values.astype("<f8" if values.dtype.kind == "f" else "<i8").tobytes()).hexdigest()
            moving = f", {int((values > 0).sum())} of them above 0" if name == "scale" else ""
            found.append((name, f"{PARTS[name]}, {values.size} numbers{moving}, sha256 {digest}"))
        else:
            raise Refused(f"a region with {quoted(name)}, which this checker does not know")
    return tuple(found)


def read_models(header: Mapping[str, Any], models: Sequence[str | Path], digests: Sequence[str]) -> None:
    """Refuse a header that is about other models than these files with these sums."""
    claimed = [str(model["sha256"]) for model in header["models"]]
    if len(claimed) != len(digests):
        raise Refused(f"the certificate is about {len(claimed)} models, {len(digests)} were named")
    for path, found, digest in zip(models, digests, claimed):
        if found != digest:
            raise Refused(f"{path} is not the model that the certificate is about")


def read_region(region: Mapping[str, Any], plain: bool = True) -> tuple[float | None, str, tuple[float, float] | None]:
    """Radius, norm and clip range; Refused where they are none. A region that is not ``plain`` may have no radius."""
    eps, norm, clip = region["eps"], str(region["norm"]), region["clip"]
    if not ((number(eps) and eps >= 0) or (eps is None and not plain)) or norm not in NORMS:
        raise Refused("a region with an invalid radius or norm")
    if clip is not None and not (isinstance(clip, list) and len(clip) == 2 and all(number(end) for end in clip)):
        raise Refused("a clip range that is not two numbers")
    return None if eps is None else float(eps), norm, None if clip is None else (float(clip[0]), float(clip[1]))


def describe_clip(clip: tuple[float, float] | None) -> str:
    """The clip range in words; nothing where there is none."""
    return "" if clip is None else f", clipped to {clip[0]!r} to {clip[1]!r}"


def norm_name(norm: str | float) -> str:
    """``"inf"``, ``"2"`` or ``"1"`` for a norm given by name or by number."""
    found = norm if isinstance(norm, str) else "inf" if math.isinf(norm) else f"{norm:g}"
    if found not in NORMS:
        raise CertificateError(f"norm {quoted(norm)} is none of {', '.join(NORMS)}")
    return found


def whole(found: Any) -> bool:
    """Whether a value of a header is a whole number."""
    return isinstance(found, int) and not isinstance(found, bool)


def number(found: Any) -> bool:
    """Whether a value of a header is a finite number."""
    return whole(found) or (isinstance(found, float) and math.isfinite(found))
