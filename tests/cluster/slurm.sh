#!/usr/bin/env bash
# A real Slurm on this machine, for tests: one controller and two nodes of one core each, all on the loopback address.
#
#   slurm.sh start    install it where it is missing (Debian, root), start it, wait until both nodes are idle
#   slurm.sh conf     print the value of SLURM_CONF with which sbatch and its like find it
#   slurm.sh stop     end its jobs and its daemons, and delete its folder
#
# Partitions: low (the default; its jobs are warned, have ten seconds, and are queued again) and high, which takes the
# nodes from it. Nothing is written outside the folder, but for the packages; a Slurm of the machine's own is not touched.
set -euo pipefail

FOLDER=${TKIT_SLURM_FOLDER:-/tmp/tkit-slurm}
CONF=$FOLDER/slurm.conf
CONTROLLER_PORT=17000
NODE_PORTS="[17001-17002]"
PATIENCE=60 # seconds until both nodes must be there

fail() {
  echo "slurm.sh: $*" >&2
  exit 1
}

install_packages() {
  if command -v slurmctld slurmd sbatch munged >/dev/null; then return; fi
  [ "$(id -u)" = 0 ] || fail "Slurm is not installed, and only root can install it: apt-get install slurm-wlm munge"
  command -v apt-get >/dev/null || fail "Slurm is not installed, and there is no apt-get: install slurm and munge"
  export DEBIAN_FRONTEND=noninteractive
  local log=/tmp/tkit-slurm-install.log
  {
    apt-get update -q -o Acquire::Languages=none
    apt-get install -y -q --no-install-recommends slurm-wlm munge
  } >"$log" 2>&1 </dev/null || fail "Slurm cannot be installed by apt-get; the end of $log: $(tail -n 3 "$log" | tr '\n' ' ')"
}

write_conf() {
  local host
  host=$(hostname -s)
  cat >"$CONF" <<END
ClusterName=tkit
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$CONTROLLER_PORT
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$FOLDER/munge.socket
CredType=cred/munge
StateSaveLocation=$FOLDER/state
SlurmctldPidFile=$FOLDER/slurmctld.pid
SlurmctldLogFile=$FOLDER/slurmctld.log
SlurmdSpoolDir=$FOLDER/spool-%n
SlurmdPidFile=$FOLDER/slurmd-%n.pid
SlurmdLogFile=$FOLDER/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
KillWait=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
SlurmctldParameters=preempt_send_user_signal
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
NodeName=n[1-2] NodeHostname=$host NodeAddr=127.0.0.1 Port=$NODE_PORTS CPUs=1 RealMemory=2000
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=10
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF
END
}

start() {
  install_packages
  [ "$(id -u)" = 0 ] || fail "must be started by root"
  [ ! -e "$FOLDER" ] || stop
  mkdir -p "$FOLDER/state"
  chmod 755 "$FOLDER"
  head -c 1024 /dev/urandom >"$FOLDER/munge.key"
  chmod 400 "$FOLDER/munge.key"
  munged --key-file="$FOLDER/munge.key" --socket="$FOLDER/munge.socket" --pid-file="$FOLDER/munged.pid" \
    --log-file="$FOLDER/munged.log" --seed-file="$FOLDER/munged.seed" || fail "munged does not start; see $FOLDER"
  write_conf
  export SLURM_CONF=$CONF
  slurmctld -f "$CONF" >"$FOLDER/start.log" 2>&1 || fail "slurmctld does not start: $(tail -n 3 "$FOLDER/start.log")"
  for node in n1 n2; do
    mkdir -p "$FOLDER/spool-$node"
    slurmd -f "$CONF" -N "$node" >"$FOLDER/start.log" 2>&1 || fail "slurmd does not start: $(tail -n 3 "$FOLDER/start.log")"
  done
  for _ in $(seq "$PATIENCE"); do
    if [ "$(sinfo -h -p low -o '%D %T' 2>/dev/null)" = "2 idle" ]; then return; fi
    sleep 1
  done
  tail -n 5 "$FOLDER"/slurm*.log >&2 || true
  fail "the two nodes are not idle after $PATIENCE seconds: $(sinfo -h -N -o '%N %T %E' 2>&1 | tr '\n' ';')"
}

stop() {
  [ -e "$FOLDER" ] || return 0
  export SLURM_CONF=$CONF
  if timeout 5 scancel --user=root --signal=KILL >/dev/null 2>&1; then
    timeout 5 scancel --user=root >/dev/null 2>&1 || true
    for _ in 1 2 3 4 5; do [ -z "$(timeout 5 squeue -h 2>/dev/null)" ] || sleep 1; done
  fi
  local name pid
  for name in slurmd-n1 slurmd-n2 slurmctld munged; do
    pid=$(cat "$FOLDER/$name.pid" 2>/dev/null) || continue
    kill "$pid" 2>/dev/null || continue
    for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null && sleep 0.1 || break; done
    kill -9 "$pid" 2>/dev/null || true
  done
  rm -rf "$FOLDER"
}

case ${1:-} in
  start) start ;;
  stop) stop ;;
  conf) echo "$CONF" ;;
  *) fail "start, conf or stop" ;;
esac
