// /status as an agent of 0.1.0 writes it. An operator of that release reads it by these names, and so does one of
// today. Add to it; what is there stays.
#pragma once

namespace lockstep {

inline constexpr const char* kRecordedStatus = R"({
  "job": "job", "namespace": "team-a", "jobUid": "5f0c", "workload": "sasrec", "node": 0, "coordinator": null,
  "generation": 7, "phase": "Recovering", "reason": "", "startTime": 1700000000, "worldSize": 4, "nnodes": 2,
  "wantedNodes": 2,
  "nodes": [{"node": 1, "host": "h", "attempt": 9, "state": "member", "ready": false}],
  "progress": {"step": 333, "totalSteps": 1000, "epoch": 1, "numEpochs": 20, "percent": 33, "loss": 0.5,
    "learningRate": 0.25, "gradientNorm": null, "samplesPerSecond": 512.0, "stepsPerSecond": null,
    "estimatedRemainingSeconds": 61.5, "dataWaitRatio": null, "deviceMemoryBytes": null},
  "lastCheckpoint": {"step": 200, "path": "/c"}, "origin": "resumed from /c", "restarts": 2,
  "metrics": {"ndcg@10": 0.5},
  "recentFailures": [{"rank": 1, "node": 1, "pid": 4, "exitCode": 137, "reason": "SignalKILL", "message": "m",
    "step": 2, "generation": 6, "time": 9}],
  "recoveriesTotal": 1, "redoneSteps": 1,
  "recoveries": [{"cause": "NodeLost", "rank": null, "detectionSeconds": null, "respawnSeconds": null,
    "formingSeconds": null, "syncSeconds": null, "totalSeconds": 0.5, "redoneSteps": 1, "lostSeconds": null, "step": 334,
    "worldSize": 4, "origin": "", "generation": 7, "time": 8, "brokenNanoseconds": 5, "committedNanoseconds": 6}],
  "ladder": {"rung": "process", "restarts": 2, "budgetLeft": 8, "lastDecision": "starting it again"},
  "goodput": {"ratio": 0.75, "seconds": [{"kind": "waiting", "cause": "startup", "seconds": 2.0}]},
  "slowest": {"rank": 1, "node": 1, "lagSeconds": 0.25},
  "loading": {"prepared": 3, "toPrepare": 9, "secondsUnchanged": 0.5},
  "workers": [{"rank": 1, "node": 1, "pid": 5, "state": "joined", "step": 3, "activity": "evaluating",
    "phase": "validation", "secondsUnchanged": 0.0}]
})";

}  // namespace lockstep
