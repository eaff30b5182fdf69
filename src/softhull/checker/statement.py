"""What a certificate states, all of it: about which models, which input, which region, and what is said of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    eps: float
    norm: str
    clip: tuple[float, float] | None
    property: dict[str, Any]
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
        for name, (value, stated) in wanted.items():
            if value is not None and value != stated and not (name == "index" and stated is None and self.data):
                raise Refused(f"{name} {value} is demanded, the certificate is about {name} {quoted(stated)[1:-1]}")

    def concluded(self, conclusion: str, property: dict[str, Any], single_input: bool) -> Statement:
        return replace(self, conclusion=conclusion, property=property, single_input=single_input)

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
        clip = "" if self.clip is None else f", clipped to {self.clip[0]!r} to {self.clip[1]!r}"
        found = [f"model: {name}, sha256 {digest}" for name, digest in self.models]
        found.append(f"input: {which}, {source}; sha256 {self.input_sha256}")
        found.append(f"region: eps = {self.eps!r} in the l_{self.norm} norm{clip}")
        found.append(f"property: {self.conclusion}")
        return [one_line(line) for line in found]

    def to_dict(self) -> dict[str, Any]:
        source = {"from": "certificate" if self.data is None else "data", "data": self.data}
        return {
            "models": [{"file": name, "sha256": digest} for name, digest in self.models],
            "input": {"index": self.index, "sha256": self.input_sha256, **source},
            "region": {
                "eps": self.eps,
                "norm": self.norm,
                "clip": None if self.clip is None else list(self.clip),
                "single_input": self.single_input,
            },
            "property": self.property,
            "text": one_line(str(self)),
        }


def read_statement(
    header: dict[str, Any], models: Sequence[str | Path], digests: Sequence[str], data: str | Path | None
) -> Statement:
    """What a header states; Refused where it is about other models, or no statement at all."""
    claimed = [str(model["sha256"]) for model in header["models"]]
    if len(claimed) != len(digests):
        raise Refused(f"the certificate is about {len(claimed)} models, {len(digests)} were named")
    for path, found, digest in zip(models, digests, claimed):
        if found != digest:
            raise Refused(f"{path} is not the model that the certificate is about")
    index, region, property = header["input"].get("index"), header["region"], header["property"]
    if not (index is None or (whole(index) and index >= 0)) or not isinstance(property, dict):
        raise CertificateError("malformed: no index or no property")
    eps, norm, clip = region["eps"], str(region["norm"]), region["clip"]
    if not (number(eps) and eps >= 0) or norm not in NORMS:
        raise Refused("a region with an invalid radius or norm")
    if clip is not None and not (isinstance(clip, list) and len(clip) == 2 and all(number(end) for end in clip)):
        raise Refused("a clip range that is not two numbers")
    if not whole(property["label"]) or property["label"] < 0:
        raise Refused(f"label {quoted(property['label'])} is no class")
    return Statement(
        tuple((str(path), digest) for path, digest in zip(models, digests)),
        index,
        str(header["input"]["sha256"]),
        None if data is None else str(data),
        float(eps),
        norm,
        None if clip is None else (float(clip[0]), float(clip[1])),
        property,
    )


def norm_name(norm: str | float) -> str:
    """``"inf"``, ``"2"`` or ``"1"`` for a norm given by name or by number."""
    found = norm if isinstance(norm, str) else "inf" if math.isinf(norm) else f"{norm:g}"
    if found not in NORMS:
        raise CertificateError(f"norm {quoted(norm)} is none of {', '.join(NORMS)}")
    return found


def whole(found: Any) -> bool:
    return isinstance(found, int) and not isinstance(found, bool)


def number(found: Any) -> bool:
    return whole(found) or (isinstance(found, float) and math.isfinite(found))
