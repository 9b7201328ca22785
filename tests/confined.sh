# bash confined.sh UID FOLDER... -- COMMAND...: see confined.py. Runs as root in a mount name space of its own.
# FOLDER is ro:PATH or rw:PATH; both stay visible.
set -euo pipefail
uid=$1
shift
mount -t tmpfs none /mnt
modes=() paths=()
while [ "$1" != -- ]; do
  kept=/mnt/${#paths[@]}
  mkdir "$kept"
  mount --bind "${1#*:}" "$kept"
  modes+=("${1%%:*}")
  paths+=("${1#*:}")
  shift
done
shift
for folder in /root /home /var/tmp; do mount -t tmpfs -o mode=755 none "$folder"; done
mount -t tmpfs -o mode=1777 none /tmp
for n in "${!paths[@]}"; do
  mkdir -p "${paths[n]}"
  mount --move "/mnt/$n" "${paths[n]}"
done
umount /mnt
# As in the images: the user has a name and a home, which here does not exist.
{ cat /etc/passwd && echo "dexorder:x:$uid:$uid::/home/dexorder:/usr/sbin/nologin"; } >/var/tmp/passwd
mount --bind /var/tmp/passwd /etc/passwd
findmnt --raw --noheadings --output TARGET | while read -r target; do
  target=$(printf '%b' "$target") # findmnt writes a blank as \x20
  case $target in /proc | /proc/* | /sys | /sys/* | /dev | /dev/* | /tmp) continue ;; esac
  for n in "${!paths[@]}"; do
    if [ "${modes[n]}:${paths[n]}" = "rw:$target" ]; then continue 2; fi
  done
  mount -o remount,bind,ro "$target"
done
cd /
exec setpriv --reuid "$uid" --regid "$uid" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all \
  --pdeathsig KILL "$@"
