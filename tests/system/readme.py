"""What the README promises also stands elsewhere: each variable as in docs/settings.md, the packages to build by hand
as tools/lib/common.sh installs them, and each file that it names."""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def text(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def settings_rows():
    """The rows that the README may have, made from the reference's."""
    for line in text("docs/settings.md").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 5 and cells[0].startswith("`BYPASS_"):
            yield f"| {cells[0]} | {cells[2]} | {cells[4]} |".replace("|  |", "| |")


def packages(shell):
    return shell.replace("\\\n", " ").split()


def main():
    readme, problems = text("README.md"), []
    rows = re.findall(r"^\| `BYPASS_.*$", readme, re.M)
    if not rows:
        problems.append("the README has no row of a setting")
    problems += [f"not a row of docs/settings.md: {row}" for row in rows if row not in set(settings_rows())]
    installed = re.search(r'packages_build="([^"]*)"', text("tools/lib/common.sh")).group(1)
    by_hand = re.search(r"apt-get install ((?:.*\\\n)*.*)", readme).group(1)
    if packages(installed) != packages(by_hand):
        problems.append(f"packages to build by hand: {by_hand}\nbut tools/lib/common.sh installs: {installed}")
    for name in re.findall(r"\]\(([^):]+)\)|^(tools/\w+)", readme, re.M):
        if not os.path.exists(os.path.join(ROOT, "".join(name))):
            problems.append(f"{''.join(name)} is not there")
    print("\n".join(problems))
    sys.exit(1 if problems else 0)


main()
