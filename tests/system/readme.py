"""What the README promises stands elsewhere, too: every variable as in docs/settings.md, the packages to build by hand
as tools/lib/common.sh installs them, and each file that it names."""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def text(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def settings_table():
    """The README's table of settings, made from the reference's."""
    rows = ["| variable | default | meaning |", "| --- | --- | --- |"]
    for line in text("docs/settings.md").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 5 and cells[0].startswith("`BYPASS_"):
            rows.append(f"| {cells[0]} | {cells[2]} | {cells[4]} |".replace("|  |", "| |"))
    return "\n".join(rows)


def packages(shell):
    return shell.replace("\\\n", " ").split()


def main():
    readme, problems = text("README.md"), []
    if settings_table() not in readme:
        problems.append("the table of settings is not docs/settings.md's; it would be:\n" + settings_table())
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
