"""A namespace of a test's own."""
import contextlib
import dataclasses
import re

from control_plane import ControlPlane


@dataclasses.dataclass
class Api:
    """What most tests need: a cluster, a namespace of the test's own, kubectl in it."""
    control_plane: ControlPlane
    namespace: str

    @property
    def kubeconfig(self):
        return self.control_plane.kubeconfig

    @property
    def client(self):
        """A KubeApi."""
        return self.control_plane.api

    def kubectl(self, *words, **options):
        """CompletedProcess; see ControlPlane.kubectl."""
        return self.control_plane.kubectl(*words, namespace=self.namespace, **options)

    def get(self, resource, name):
        return self.client.get(resource, self.namespace, name)

    def list(self, resource, **query):
        return self.client.list(resource, self.namespace, **query)

    def create(self, resource, body):
        return self.client.create(resource, body, self.namespace)


@contextlib.contextmanager
def fresh_namespace(control_plane, test_name):
    """An Api whose namespace has the test's name; deleted at the end."""
    name = re.sub(r"[^a-z0-9]+", "-", test_name.lower()).strip("-")[:45].strip("-")
    namespace = control_plane.make_namespace(f"{name}-{control_plane.number()}")
    yield Api(control_plane, namespace)
    if control_plane.api.is_ready():
        control_plane.api.delete("namespaces", name=namespace)
