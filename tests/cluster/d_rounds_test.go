package cluster_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// chaos is a cluster to which random things happen.
type chaos struct {
	*cluster
	t       *testing.T
	random  *rand.Rand
	readers []reader
	writer  *pod // which saves a checkpoint in every round
	number  int  // of the next pod
	again   int  // readers whose open files a fault ended
}

// Random faults: plugin, host, daemons, keepers, kubelet and pods are killed or deleted, volumes come and go. No byte is ever wrong, all that
// failed works again, a draft of every round is published after it, and nothing is left in the end. HBMFS_CLUSTER_ROUNDS makes more,
// HBMFS_SEED others.
func TestRandomFaults(t *testing.T) {
	c := need(t)
	seed, count := blackbox.Seed(t), fromEnv(t, "HBMFS_CLUSTER_ROUNDS", 50)
	x := &chaos{cluster: c, t: t, random: rand.New(rand.NewPCG(seed, 1))}
	x.ready()
	c.persistent(t, "local", c.local())
	c.persistent(t, "remote", c.remote())
	c.persistent(t, "rounds", c.checkpoints("rounds"))
	x.writer = c.saver(t, "random-saver", writes(claimed("rounds")))
	for range 4 {
		x.add()
	}
	var held []time.Duration
	for i := range count {
		began, name, way := time.Now(), fmt.Sprint("round-", i+1), []string{"", "-past"}[i%2]
		x.writer.do(t, "begin"+way, name)
		held = append(held, c.awaitHeld(t, x.rounds(), name))
		what := x.round()
		t.Logf("round %d: %s", i+1, what)
		x.ready()
		x.check()
		x.writer.do(t, "publish"+way, name)
		reads(t, x.rounds(), name, x.writer)
		x.writer.do(t, "remove", name)
		t.Logf("round %d: all reads and saves well after %.1f s", i+1, time.Since(began).Seconds())
	}
	t.Logf("open files that a fault ended: %d; until the plugin held a draft: %s", x.again, spread(held))
	c.remove(t, x.writer)
	for _, r := range x.readers {
		c.remove(t, r.pod)
	}
	c.clean(t)
}

// rounds is the directory of the checkpoint volume.
func (x *chaos) rounds() string { return x.at("checkpoints", "train", "rounds") }

func (x *chaos) ready() {
	x.t.Helper()
	x.await(x.t, "the driver is ready", func() error { return x.cluster.ready(x.t, "") })
}

// add starts a pod with a random volume, which holds a random file.
func (x *chaos) add() {
	x.t.Helper()
	x.number++
	own := x.local()
	own["umask"] = []string{"0022", "0002", "0000"}[x.random.IntN(3)]
	i := x.random.IntN(4)
	name, file, volume := fmt.Sprint("random-", x.number), fmt.Sprintf("local-%d.bin", i), inline(own, "")
	switch x.random.IntN(4) {
	case 0:
		volume = claimed("local")
	case 1:
		volume, file = claimed("remote"), fmt.Sprintf("remote-%d.bin", i)
	case 2:
		volume, file = inline(x.remote(), "keys"), fmt.Sprintf("remote-%d.bin", i)
	}
	p := x.create(x.t, "train", name, volume, file)
	x.started(x.t, p)
	p.do(x.t, "hold", file)
	x.readers = append(x.readers, reader{p, file})
}

// drop takes a random pod off the list.
func (x *chaos) drop() reader {
	i := x.random.IntN(len(x.readers))
	r := x.readers[i]
	x.readers = append(x.readers[:i:i], x.readers[i+1:]...)
	return r
}

// killOne kills one of some processes.
func (x *chaos) killOne(keepers bool) {
	var found []processOf
	for _, p := range programs() {
		if p.isKeeper() == keepers {
			found = append(found, p)
		}
	}
	if len(found) > 0 {
		_ = syscall.Kill(found[x.random.IntN(len(found))].pid, syscall.SIGKILL) // it may have ended
	}
}

// round does one random thing, and says what.
func (x *chaos) round() string {
	x.t.Helper()
	switch x.random.IntN(11) {
	case 0:
		return x.killPart(x.t, "plugin")
	case 1:
		return x.killPart(x.t, "host")
	case 2:
		x.killOne(false)
		return "a daemon was killed"
	case 3:
		x.killOne(true)
		return "a keeper was killed"
	case 4:
		x.killOne(true)
		x.killOne(false)
		return "a daemon and a keeper were killed"
	case 5:
		must(x.t, x.processes["kubelet"].restart())
		return "kubelet was killed"
	case 6:
		x.remove(x.t, x.drop().pod)
		x.add()
		return "a pod was deleted, and another made"
	case 7:
		return x.killPod()
	case 8:
		return x.newVolume()
	case 9:
		return x.killSaver()
	}
	r := x.drop()
	must(x.t, x.api("DELETE", r.path()+"?gracePeriodSeconds=0", nil, nil))
	must(x.t, x.processes["kubelet"].restart())
	x.remove(x.t, r.pod)
	x.add()
	return "a pod was deleted by force, kubelet was killed, and another pod made"
}

func (x *chaos) killPod() string {
	x.t.Helper()
	r := x.drop()
	var s podStatus
	must(x.t, x.api("GET", r.path(), nil, &s))
	for _, pid := range processesOf(s) {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
	x.await(x.t, "kubelet sees the death of "+r.name, func() error {
		if err := x.api("GET", r.path(), nil, &s); err != nil || s.Status.Phase != "Failed" {
			return errors.Join(err, fmt.Errorf("its phase is %q", s.Status.Phase))
		}
		return nil
	})
	x.remove(x.t, r.pod)
	x.add()
	return "a pod was killed, and another made"
}

// killSaver kills a pod that saves: its draft goes, and that of the other pod stays.
func (x *chaos) killSaver() string {
	x.t.Helper()
	x.number++
	p := x.saver(x.t, fmt.Sprint("random-dies-", x.number), writes(claimed("rounds")))
	p.do(x.t, "begin", "draft")
	p.do(x.t, "begin-past", "draft-past")
	x.kill(x.t, p)
	x.awaitDrafts(x.t, x.rounds(), 1, "the pod died")
	x.remove(x.t, p)
	return "a pod with two drafts was killed"
}

// newVolume makes a volume, has a pod read it, and deletes all of it.
func (x *chaos) newVolume() string {
	x.t.Helper()
	x.number++
	name := fmt.Sprint("volume-", x.number)
	attributes, file := x.local(), "local-2.bin"
	if x.random.IntN(2) == 0 {
		attributes, file = x.remote(), "remote-2.bin"
	}
	x.persistent(x.t, name, attributes)
	p := x.create(x.t, "train", name, claimed(name), file)
	x.started(x.t, p)
	p.do(x.t, "hash", file)
	x.remove(x.t, p)
	must(x.t, x.api("DELETE", "/api/v1/namespaces/train/persistentvolumeclaims/"+name, nil, nil))
	must(x.t, x.api("DELETE", "/api/v1/persistentvolumes/"+name, nil, nil))
	return "a volume was made, read and deleted"
}

// check has every pod read all that it holds, and a file anew. Where a fault ended an open file, it is opened again.
func (x *chaos) check() {
	x.t.Helper()
	for _, r := range x.readers {
		if a, err := r.try("held", r.file); err != nil {
			x.again++
			x.t.Logf("%s: %v", r.name, err)
			x.await(x.t, r.name+" opens its file again", func() error { _, err := r.try("hold", r.file); return err })
		} else if a.Wrong != "" {
			x.t.Fatalf("%s: wrong bytes: %s", r.name, a.Wrong)
		}
		x.await(x.t, r.name+" reads its file", func() error {
			a, err := r.try("hash", r.file)
			if a.Wrong != "" {
				x.t.Fatalf("%s: wrong bytes: %s", r.name, a.Wrong)
			}
			return err
		})
	}
}
