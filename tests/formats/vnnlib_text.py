"""Properties as the text of a file, to be read back."""

from __future__ import annotations

from decimal import Decimal

import numpy as np

from softhull.errors import SpecificationError
from softhull.formats.vnnlib import Specification


def write_vnnlib(specification: Specification, version: int = 1) -> str:
    """The text of a property file that reads back as the same specification."""
    if version == 1:
        declared = [f"(declare-const X_{i} Real)" for i in range(specification.inputs)]
        declared += [f"(declare-const Y_{i} Real)" for i in range(specification.outputs)]
        names = "X_{}", "Y_{}"
    elif version == 2:
        shapes = f"X float64 [{specification.inputs}]", f"Y float64 [{specification.outputs}]"
        declared = [
            "(vnnlib-version <2.0>)",
            f"(declare-network N (declare-input {shapes[0]}) (declare-output {shapes[1]}))",
        ]
        names = "X[{}]", "Y[{}]"
    else:
        raise SpecificationError(f"VNN-LIB version {version} is unknown; 1 and 2 can be written")
    cases = []
    for part in specification.disjuncts:
        least, most = part.ends
        below, above = (np.where(end == own, "=", "") for end, own in ((least, part.lower), (most, part.upper)))
        atoms = [f"(>{c} {names[0].format(i)} {_decimal(v)})" for i, (c, v) in enumerate(zip(below, part.lower))]
        atoms += [f"(<{c} {names[0].format(i)} {_decimal(v)})" for i, (c, v) in enumerate(zip(above, part.upper))]
        for row, limit, strict in zip(part.matrix, part.offset, part.strict):
            terms = [f"(* {_decimal(c)} {names[1].format(i)})" for i, c in enumerate(row) if c != 0]
            if not terms:
                terms = [f"(* 0.0 {names[1].format(0)})"]
            total = terms[0] if len(terms) == 1 else f"(+ {' '.join(terms)})"
            atoms.append(f"({'<' if strict else '<='} {total} {_decimal(limit)})")
        cases.append(f"(and {' '.join(atoms)})")
    whole = cases[0] if len(cases) == 1 else f"(or {' '.join(cases)})"
    return "\n".join([*declared, f"(assert {whole})", ""])


def _decimal(number: float) -> str:
    """Every digit, so that reading rounds nothing; without an exponent, which version 2 does not read."""
    digits = f"{Decimal(float(number)):f}"
    return digits if "." in digits else f"{digits}.0"
