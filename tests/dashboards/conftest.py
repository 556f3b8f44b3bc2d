"""What the tests of dashboards/ use: the helpers of the two kinds of tests whose programs they scrape."""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
for folder in ("cluster", "python"):
    sys.path.append(str(HERE.parent / folder))


def pytest_addoption(parser):
    parser.addoption("--draw", metavar="FOLDER", help="write the pictures of the boards there, as board_NAME.svg")
