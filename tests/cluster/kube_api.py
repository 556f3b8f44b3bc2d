"""A small client of the Kubernetes API: JSON in, JSON out, one kept-alive connection per thread."""
import http.client
import json
import select
import socket
import ssl
import threading
import urllib.parse

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
NO_ANSWER = (OSError, http.client.HTTPException)  # the server is away, or went away in the middle of its answer


class ApiError(Exception):
    """An answer of 400 or above."""

    def __init__(self, method, path, status, answer):
        self.status = status
        self.reason = answer.get("reason", "")
        self.message = answer.get("message", "")
        self.answer = answer
        super().__init__(f"{method} {path}: {status} {self.reason}: {self.message}")


def path_of(resource, namespace=None, name=None, subresource=None):
    """path_of("pods", "a", "b", "status"), path_of("lockstep.dev/v1/trainjobs", "a"), path_of("nodes")."""
    *group, plural = resource.split("/")
    root = "/api/v1" if not group else "/apis/" + "/".join(group)
    words = [root] + (["namespaces", namespace] if namespace else []) + [plural]
    return "/".join(words + [urllib.parse.quote(word) for word in (name, subresource) if word])


class KubeApi:
    """Safe from all threads. Errors: ApiError, OSError and http.client.HTTPException when there is no answer."""

    def __init__(self, port, ca_file, certificate=None, key=None, token=None, host="127.0.0.1"):
        self.host, self.port, self.token = host, port, token
        self.tls = ssl.create_default_context(cafile=ca_file)
        if certificate:
            self.tls.load_cert_chain(certificate, key)
        self.of_thread = threading.local()

    def connection(self, timeout):
        """The thread's own. One that the server has closed meanwhile shows it by being readable."""
        found = getattr(self.of_thread, "connection", None)
        if found is not None and found.sock is not None and select.select([found.sock], [], [], 0)[0]:
            found.close()
        if found is None:
            found = http.client.HTTPSConnection(self.host, self.port, context=self.tls)
            self.of_thread.connection = found
        found.timeout = timeout
        if found.sock is not None:
            found.sock.settimeout(timeout)
        return found

    def drop_connection(self):
        found = getattr(self.of_thread, "connection", None)
        if found is not None:
            found.close()
            self.of_thread.connection = None

    def headers(self, content_type=None):
        found = {"Accept": "application/json"}
        if content_type:
            found["Content-Type"] = content_type
        if self.token:
            found["Authorization"] = f"Bearer {self.token}"
        return found

    def request(self, method, path, body=None, content_type="application/json", timeout=30):
        """The answer as an object; text that is no JSON as a string. A body that is text is sent as it is."""
        data = body if body is None or isinstance(body, str) else json.dumps(body)
        connection = self.connection(timeout)
        try:
            connection.request(method, path, data, self.headers(content_type if data else None))
            answer = connection.getresponse()
            text = answer.read().decode()
        except NO_ANSWER:
            self.drop_connection()
            raise
        is_json = answer.headers.get_content_type() == "application/json"
        found = json.loads(text) if is_json else text
        if answer.status >= 400:
            raise ApiError(method, path, answer.status, found if is_json else {"message": text})
        return found

    def get(self, resource, namespace=None, name=None, subresource=None):
        return self.request("GET", path_of(resource, namespace, name, subresource))

    def list(self, resource, namespace=None, **query):
        """The items; query: labelSelector, fieldSelector, …"""
        return self.request("GET", with_query(path_of(resource, namespace), query))["items"]

    def create(self, resource, body, namespace=None, name=None, subresource=None):
        return self.request("POST", path_of(resource, namespace, name, subresource), body)

    def patch(self, resource, body, namespace=None, name=None, subresource=None, content_type=MERGE_PATCH):
        return self.request("PATCH", path_of(resource, namespace, name, subresource), body, content_type)

    def delete(self, resource, namespace=None, name=None, **options):
        """options: gracePeriodSeconds, propagationPolicy, preconditions={"uid": …}"""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        return self.request("DELETE", path_of(resource, namespace, name), body)

    def is_ready(self):
        try:
            return self.request("GET", "/readyz", timeout=2) == "ok"
        except (ApiError, *NO_ANSWER):
            self.drop_connection()
            return False

    def watch(self, resource, namespace=None, resource_version="", timeout=300, stop=None, **query):
        """Yields (type, object) of one watch until the server ends it. An "ERROR" in the stream is raised as an
        ApiError. `stop` (a StopWatch) ends it from another thread."""
        query = {"watch": "true", "resourceVersion": resource_version, "allowWatchBookmarks": "true",
                 "timeoutSeconds": timeout, **query}
        path = with_query(path_of(resource, namespace), query)
        connection = http.client.HTTPSConnection(self.host, self.port, context=self.tls, timeout=timeout + 10)
        try:
            connection.connect()
            if stop is not None:
                stop.hold(connection.sock)
            connection.request("GET", path, headers=self.headers())
            answer = connection.getresponse()
            if answer.status >= 400:
                raise ApiError("GET", path, answer.status, json.loads(answer.read()))
            for line in iter(answer.readline, b""):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError("GET", path, event["object"].get("code", 500), event["object"])
                yield event["type"], event["object"]
        finally:
            if stop is not None:
                stop.release()
            connection.close()


class StopWatch:
    """Ends a watch that another thread reads."""

    def __init__(self):
        self.lock = threading.Lock()
        self.socket = None
        self.stopped = False

    def hold(self, connected_socket):
        with self.lock:
            if self.stopped:
                raise OSError("stopped")
            self.socket = connected_socket

    def release(self):
        with self.lock:
            self.socket = None

    def stop(self):
        """No watch begins any more; the one that is read ends."""
        with self.lock:
            self.stopped = True
            self.cut_held()

    def cut(self):
        """The one that is read ends, as if the network had failed; the next may begin."""
        with self.lock:
            self.cut_held()

    def cut_held(self):
        if self.socket is not None:
            try:
                # TCP's, not TLS's: the reading thread owns the TLS state.
                socket.socket.shutdown(self.socket, socket.SHUT_RDWR)
            except OSError:
                pass


def with_query(path, query):
    return path + ("?" + urllib.parse.urlencode(query) if query else "")


def node_is_usable(node):
    """Ready, and the taint that a new node has is gone."""
    conditions = node.get("status", {}).get("conditions", [])
    is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return is_ready and not node["spec"].get("taints")
