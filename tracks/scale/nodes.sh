# Several nodes, sourced by speedrun.sh on each: tracks/scale/README.md. Node 0, the head, runs the job. It announces its distributed
# steps in a folder, where the others find them and run the same torchrun until the head has ended or is silent.
refuse() {
  if [ "$node" != 0 ]; then set -- "node $node: $*"; fi
  printf 'error: %s\n' "$*" >&2
  if [ "$node" = 0 ]; then sleep 3; fi # two beats: the others see them, and end
  exit 2
}
refresh() { : >"$meeting/now$node" && rm -f "$meeting/now$node"; } # NFS remembers for 30 s that a file was not there
node=${NANOCHAT_NODE_RANK:-0} least=${NANOCHAT_NODES%:*} most=${NANOCHAT_NODES#*:}
patience=${NANOCHAT_PATIENCE:-20} # seconds to wait for other nodes
case $least,$most in *[!0-9,]* | ,* | *,) refuse "NANOCHAT_NODES=$NANOCHAT_NODES is not a number of nodes (2) or a range (1:2)" ;; esac
if [ $((most & (most - 1))) != 0 ]; then refuse "NANOCHAT_NODES=$most: use a power of two, as the rows of a batch are"; fi
case ${NANOCHAT_HEAD:-} in ?*:[0-9]*) ;; *) refuse "several nodes need NANOCHAT_HEAD, the address HOST:PORT of node 0" ;; esac
if [ -z "${NANOCHAT_BASE_DIR:-}" ]; then refuse "several nodes need NANOCHAT_BASE_DIR, a folder that all of them share"; fi
host=${NANOCHAT_HEAD%:*} port=${NANOCHAT_HEAD##*:} meeting=$NANOCHAT_BASE_DIR/nodes/${NANOCHAT_HEAD//:/-}
mkdir -p "$meeting"

# For torchrun. Ranks follow the order of addresses: "~" comes last, so that rank 0, which prints, is on the head.
export PET_NNODES=$NANOCHAT_NODES PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=$NANOCHAT_HEAD PET_MAX_RESTARTS=${PET_MAX_RESTARTS:-3}
export PET_RDZV_CONF=is_host=$((node == 0)) PET_LOCAL_ADDR="~$node"
# A store of its own for each attempt: torch 2.15 would give the next one the addresses of dead ranks.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
if [ "$node" = 0 ]; then export PET_LOCAL_ADDR=$host; fi

if [ "$node" = 0 ]; then
  rm -f "$meeting"/*
  # Slurm sends SIGUSR1 to all processes.
  (trap '' USR1; while kill -0 $$; do date +%s%N >"$meeting/beat" && sleep 2; done) >/dev/null 2>&1 & beating=$!
  if (: <>"/dev/tcp/$host/$port") 2>/dev/null; then refuse "port $port of $host is in use: use another in NANOCHAT_HEAD"; fi
  found=0
  for ((second = 0; second < patience && found < most; second++)); do
    sleep 1
    refresh
    found=1
    for ((other = 1; other < most; other++)); do if [ -e "$meeting/$other" ]; then found=$((found + 1)); fi; done
  done
  if [ "$found" -lt "$least" ]; then
    refuse "$found of $most nodes wrote to $meeting in $patience s (NANOCHAT_PATIENCE): start all, with one NANOCHAT_BASE_DIR that they share"
  fi
  export NANOCHAT_MEETING=$meeting NANOCHAT_NODES_FOUND=$found
  printf 'nodes: %s of %s, %s\n' "$found" "$most" "$meeting"
  return
fi

: >"$meeting/start$node" # older files are of an earlier job
last= step= silent=0 seen= limit=$((patience + 5))
while :; do
  refresh
  : >"$meeting/$node"
  beat=$(cat "$meeting/beat" 2>/dev/null || true)
  if [ "$beat" != "$last" ]; then last=$beat silent=0; else silent=$((silent + 1)); fi
  if [ "$meeting/beat" -nt "$meeting/start$node" ]; then seen=1 limit=60; fi
  if [ -n "$seen" ] && [ -s "$meeting/end" ]; then exit "$(cat "$meeting/end")"; fi
  if [ "$silent" -gt "$limit" ]; then
    printf 'error: node %s: for %s s the head has not written to %s: it failed, or does not share it\n' "$node" "$limit" "$meeting" >&2
    exit 2
  fi
  if [ -n "$running" ] && ! kill -0 "$running" 2>/dev/null; then
    wait "$running" || printf 'node %s: torchrun ended with exit status %s\n' "$node" "$?" >&2
    running=
  fi
  next=$(cat "$meeting/step" 2>/dev/null || true)
  if [ -n "$seen" ] && [ -z "$running" ] && [ -n "$next" ] && [ "$next" != "$step" ]; then
    step=$next
    mapfile -t words <<<"$step"
    PET_RDZV_ID=${words[0]} "$python" "${words[@]:1}" & running=$!
  fi
  sleep 1
done
