"""Packs a wheel for pip from what Cargo has built: the Python package with its module, and the tool as a program.

The wheel is the same, byte for byte, for the same files. `cargo xtask dist --wheel` calls this.
"""

import argparse
import base64
import hashlib
import pathlib
import tomllib
import zipfile

# The first time that a zip file can express.
TIME = (1980, 1, 1, 0, 0, 0)


def metadata(project: dict, crate: pathlib.Path, version: str) -> str:
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {version}",
        f"Summary: {project['description']}",
        f"Keywords: {','.join(project['keywords'])}",
        f"License-Expression: {project['license']}",
        *(f"License-File: {name}" for name in project["license-files"]),
        # The module is built for the stable interface of this version.
        "Requires-Python: >=3.11",
        "Description-Content-Type: text/markdown",
    ]
    lines += [f"Classifier: {classifier}" for classifier in project["classifiers"]]
    for extra, requirements in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        for requirement in requirements:
            requirement, _, marker = (part.strip() for part in requirement.partition(";"))
            marker = f"({marker}) and extra == '{extra}'" if marker else f"extra == '{extra}'"
            lines.append(f"Requires-Dist: {requirement}; {marker}")
    return "\n".join(lines) + "\n\n" + (crate / project["readme"]).read_text()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, required=True, help="the repository")
    parser.add_argument("--module", type=pathlib.Path, required=True, help="the extension module")
    parser.add_argument("--tool", type=pathlib.Path, required=True, help="the program untorn")
    parser.add_argument("--version", required=True)
    parser.add_argument("--platform", required=True, help="as manylinux_2_34_x86_64; several have dots between")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="directory for the wheel")
    given = parser.parse_args()

    crate = given.root / "crates/untorn-python"
    project = tomllib.loads((crate / "pyproject.toml").read_text())["project"]
    name, tag = f"{project['name']}-{given.version}", f"cp311-abi3-{given.platform}"
    information = f"{name}.dist-info"
    files: dict[str, tuple[bytes, int]] = {}
    for source in sorted((crate / "python/untorn").iterdir()):
        if source.suffix in (".py", ".pyi", ".typed"):
            files[f"untorn/{source.name}"] = (source.read_bytes(), 0o644)
    files["untorn/_untorn.abi3.so"] = (given.module.read_bytes(), 0o755)
    files[f"{name}.data/scripts/untorn"] = (given.tool.read_bytes(), 0o755)
    files[f"{information}/METADATA"] = (metadata(project, crate, given.version).encode(), 0o644)
    wheel = "Wheel-Version: 1.0\nGenerator: untorn dist\nRoot-Is-Purelib: false\n"
    for platform in given.platform.split("."):
        wheel += f"Tag: cp311-abi3-{platform}\n"
    files[f"{information}/WHEEL"] = (wheel.encode(), 0o644)
    for license in project["license-files"]:
        files[f"{information}/licenses/{license}"] = ((crate / license).read_bytes(), 0o644)
    record = ""
    for path, (content, _) in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    files[f"{information}/RECORD"] = (f"{record}{information}/RECORD,,\n".encode(), 0o644)

    result = given.out / f"{name}-{tag}.whl"
    with zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, (content, mode) in files.items():
            entry = zipfile.ZipInfo(path, TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100000 | mode) << 16
            archive.writestr(entry, content)
    print(result)


if __name__ == "__main__":
    main()
