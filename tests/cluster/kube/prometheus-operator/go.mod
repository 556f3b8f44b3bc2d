// Nothing is built of it: its CRDs are what ServiceMonitor, PodMonitor and PrometheusRule are checked against.
module lockstep.dev/tests/cluster/kube/prometheus-operator

go 1.24.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
