"""A real Prometheus beside a test, with the rules of dashboards/ loaded, asked as Grafana asks it."""
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request

from boards import DASHBOARDS, substitute
from images import cache
from processes import Process, write_whole
from waiting import wait_until

SCRAPE_SECONDS = 1
STEP_SECONDS = 1


class Prometheus:
    """targets: [(job, address, labels)]. start() … stop()."""

    def __init__(self, folder, ports, targets):
        self.folder = folder / "prometheus"
        self.folder.mkdir()
        self.port = ports.take()
        scrapes = [{"job_name": job, "static_configs": [{"targets": [address], "labels": labels}]}
                   for job, address, labels in targets]
        config = {"global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": "1s"},
                  "rule_files": [str(DASHBOARDS / "rules" / name) for name in ("recording.yaml", "alerts.yaml")],
                  "scrape_configs": scrapes}
        write_whole(self.folder / "prometheus.yml", json.dumps(config))  # JSON is YAML
        program = cache() / "tools/bin/prometheus"
        assert program.exists(), f"{program} is missing: run scripts/setup test"
        self.process = Process("prometheus", [program, "--config.file", self.folder / "prometheus.yml",
                                              "--storage.tsdb.path", self.folder / "data",
                                              f"--web.listen-address=127.0.0.1:{self.port}"], folder)
        self.started_at = time.time()

    def start(self):
        self.process.start()
        self.process.wait_until(self.is_ready, "answer to /-/ready")
        return self

    def stop(self):
        self.process.stop()

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def get(self, path, **words):
        """The data of the first answer; a refusal is a ValueError at once."""
        return self.process.wait_until(lambda: [self.ask(path, words)], f"answer to {path}")[0]

    def ask(self, path, words):
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?" + urllib.parse.urlencode(words)
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{words}: {error.read().decode()}") from error
        except (OSError, http.client.HTTPException) as error:
            raise AssertionError(f"{words}: {error!r}") from error

    def instant(self, expression):
        """[(labels, value)] now."""
        return [(one["metric"], float(one["value"][1])) for one in self.get("query", query=expression)["result"]]

    def over_time(self, expression):
        """[(labels, [value])] from the start until now."""
        result = self.get("query_range", query=expression, start=self.started_at, end=time.time(),
                          step=STEP_SECONDS)["result"]
        return [(one["metric"], [float(value) for _, value in one["values"]]) for one in result]

    def has_numbers(self, expression, is_range):
        """Is there at least one value that is a number?"""
        if is_range:
            return any(value == value for _, values in self.over_time(expression) for value in values)
        return any(value == value for _, value in self.instant(expression))

    def wait_for_numbers(self, expression, is_range=True, timeout=60):
        wait_until(lambda: self.has_numbers(expression, is_range), f"data of {expression}", timeout,
                   self.process.log_tail)

    def targets_down(self):
        return [(one["scrapeUrl"], one["lastError"]) for one in self.get("targets")["activeTargets"]
                if one["health"] != "up"]

    # --- as Grafana does it

    def grafana_values(self, board):
        """Variable → what stands for it in queries: the choice is All, or, where there is none, the first value."""
        age = int(time.time() - self.started_at) + 60
        values = {"__range": f"{age}s", "__interval": f"{STEP_SECONDS}s",
                  "__rate_interval": f"{max(STEP_SECONDS + SCRAPE_SECONDS, 4 * SCRAPE_SECONDS)}s"}
        for variable in board["templating"]["list"]:
            if variable["type"] != "query":
                continue
            series, label = substitute(variable["query"], values).removeprefix("label_values(")[:-1].rsplit(", ", 1)
            options = self.get(f"label/{label}/values", **{"match[]": series})
            assert options, f"the variable {variable['name']} has no values: {series}"
            values[variable["name"]] = variable["allValue"] if variable["includeAll"] else options[0]
        return values
