// Nothing is built of it: the CRDs of the gangs' PodGroups are what spec.scheduling.gang is tested on.
module lockstep.dev/tests/cluster/kube/gangs

go 1.24.0

require (
	sigs.k8s.io/scheduler-plugins v0.33.5
	volcano.sh/volcano v1.10.0
)
