"""The file: a zip of ``header.json`` and arrays in NumPy's own format. Nothing is executed, all is limited."""

from __future__ import annotations

import io
import json
import math
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from ..errors import InvalidInput, quoted

FORMAT, VERSION = "softhull certificate", 2
HEADER = "header.json"
LARGEST_HEADER = 1 << 24  # bytes
LARGEST_MEMBERS = 1 << 27  # bytes of all members together, unpacked
MOST_MEMBERS = 1 << 15
SUFFIX = ".npy"


class CertificateError(InvalidInput):
    """A certificate that cannot be read."""


class Refused(ValueError):
    """A step of a proof that does not follow."""


@dataclass(frozen=True)
class Certificate:
    """A header as plain data and the arrays that it names."""

    header: dict[str, Any]
    arrays: dict[str, np.ndarray[Any, Any]]

    def array(self, name: Any, kind: str) -> np.ndarray[Any, Any]:
        """The array with this name; refused if there is none of this kind."""
        found = self.arrays.get(name) if isinstance(name, str) else None
        if found is None or found.dtype.kind != kind:
            wanted = {"f": "real", "i": "whole"}[kind]
            raise CertificateError(f"there is no array {quoted(name)} of {wanted} numbers in the certificate")
        return found


def read_members(path: str | Path, most: int = LARGEST_MEMBERS, content: bytes | None = None) -> dict[str, bytes]:
    """The unpacked members of a zip file, within a limit on their size that holds whatever the file says of itself.

    ``content``: of the file, where it has been read already.
    """
    found: dict[str, bytes] = {}
    left = most
    try:
        with zipfile.ZipFile(path if content is None else io.BytesIO(content)) as archive:
            if len(archive.infolist()) > MOST_MEMBERS:
                raise CertificateError(f"{path}: more than {MOST_MEMBERS} members")
            for member in archive.infolist():
                if member.filename in found:
                    raise CertificateError(f"{path}: two members {quoted(member.filename)}")
                with archive.open(member) as stream:
                    found[member.filename] = stream.read(left + 1)
                left -= len(found[member.filename])
                if left < 0:
                    raise CertificateError(f"{path}: more than {most} bytes unpacked")
    except OSError as problem:
        raise CertificateError(f"{path}: {problem.strerror or 'cannot be read'}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError) as problem:
        if isinstance(problem, CertificateError):
            raise
        raise CertificateError(f"{path}: not a zip file that can be read ({problem})") from None
    return found


def read_array(name: str, content: bytes) -> np.ndarray[Any, Any]:
    """One array of whole or real numbers in NumPy's format; no pickle."""
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = header(stream)
        if dtype.kind not in "iuf" or dtype.hasobject or dtype.itemsize > 8:
            raise CertificateError(f"array {quoted(name)}: {dtype} is neither whole nor real numbers")
        if math.prod(shape) * dtype.itemsize != len(content) - stream.tell():
            raise CertificateError(f"array {quoted(name)}: its size is not the one of its contents")
        flat = np.frombuffer(content, dtype, offset=stream.tell())
    except (ValueError, TypeError, SyntaxError, EOFError, OverflowError, RecursionError, TokenError) as problem:
        if isinstance(problem, CertificateError):
            raise
        raise CertificateError(f"array {quoted(name)}: not in NumPy's format") from None
    return flat.reshape(shape, order="F" if fortran else "C")


def read_certificate(path: str | Path, content: bytes | None = None) -> Certificate:
    """Header and arrays of a file or its content; raises CertificateError with one line where that is impossible."""
    members = read_members(path, content=content)
    text = members.pop(HEADER, None)
    if text is None or len(text) > LARGEST_HEADER:
        raise CertificateError(f"{path}: no {HEADER} of at most {LARGEST_HEADER} bytes; not a certificate")
    header = read_json(f"{path}: {HEADER}", text)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise CertificateError(f"{path}: not a {FORMAT}")
    version = header.get("version")
    if version != VERSION:
        why = (
            "false statements were accepted in version 1; write it again"
            if version == 1
            else "written by another softhull"
        )
        raise CertificateError(f"{path}: version {quoted(version)}, this checker reads {VERSION}: {why}")
    arrays = {}
    for name, content in members.items():
        if not name.endswith(SUFFIX):
            raise CertificateError(f"{path}: unexpected member {quoted(name)}")
        try:
            found = read_array(name, content)
        except CertificateError as problem:
            raise CertificateError(f"{path}: {problem}") from None
        arrays[name.removesuffix(SUFFIX)] = found.astype(np.int64 if found.dtype.kind in "iu" else np.float64)
    return Certificate(header, arrays)


def read_json(name: str, text: bytes) -> Any:
    """Plain data in which every object names its keys once."""
    try:
        return json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise CertificateError(f"{name} is not JSON, names a key twice or is nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object that says everything once, so that no two readers see different things."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key twice")
    return found


def write_certificate(path: str | Path, certificate: Certificate) -> None:
    """Write a certificate to a file; the same certificate gives the same bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        members = [(HEADER, json.dumps(certificate.header, indent=1).encode())]
        for name, array in certificate.arrays.items():
            stream = io.BytesIO()
            np.lib.format.write_array(stream, np.ascontiguousarray(array), allow_pickle=False)
            members.append((name + SUFFIX, stream.getvalue()))
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
