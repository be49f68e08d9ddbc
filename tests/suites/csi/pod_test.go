package csi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pod is a running pod with one volume at /data.
type pod struct {
	n      *node
	uid    string
	volume *volume
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	orders *json.Encoder
	said   *json.Decoder
	stderr *bytes.Buffer
	dead   bool
}

// file is a file of a volume, whose content follows from its seed.
type file struct {
	Name string `json:"name"`
	Seed uint64 `json:"seed"`
	Size int    `json:"size"`
}

// order is what a pod is told to do, and answer what came of it.
type order struct {
	Do   string `json:"do"`
	File file   `json:"file"`
}

type answer struct {
	Error   string        `json:"error"`   // it failed
	Wrong   string        `json:"wrong"`   // a byte differed, which must never happen
	Bytes   int64         `json:"bytes"`   // read well
	Passes  int           `json:"passes"`  // through the whole file
	Errors  int           `json:"errors"`  // of a loop
	Longest time.Duration `json:"longest"` // between two reads of a loop
	Text    string        `json:"text"`
}

// podSpec is what the runtime is told of a pod.
type podSpec struct {
	Root      string // an empty directory, on which the pod's root is made
	Volume    string // what is mounted on /data
	Propagate bool
	Program   string // of the pod
	HBMFS     string // the hbmfs in its image
	ID        int    // the user and group on the host that the pod's user is
	Writable  bool
	Group     int // without a user namespace: a group of the pod's user; -1 with one
}

// runPod starts a pod as a container runtime does.
func (n *node) runPod(uid string, v *volume, opt podOptions) *pod {
	n.t.Helper()
	root := filepath.Join(suite.Dir, "root")
	must(n.t, os.MkdirAll(root, 0o755))
	var id int
	_, err := fmt.Sscanf(uid, "pod-%d", &id)
	must(n.t, err)
	group := -1
	if opt.ordinary {
		group, _ = strconv.Atoi(v.fsGroup) // none is 0
	}
	spec, err := json.Marshal(podSpec{
		Root: root, Volume: filepath.Join(n.targetPath(v, uid), opt.subPath), Propagate: opt.propagate, Program: podProgram, HBMFS: suite.Path(), ID: 100_000 + id,
		Writable: v.writes, Group: group,
	})
	must(n.t, err)
	p := &pod{n: n, uid: uid, volume: v, cmd: exec.Command(podProgram, string(spec)), stderr: &bytes.Buffer{}}
	p.cmd.Env = append(os.Environ(), podRole+"=runtime")
	p.cmd.Dir = "/"
	p.cmd.Stderr = p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS, Pdeathsig: syscall.SIGKILL,
	}
	p.stdin, err = p.cmd.StdinPipe()
	must(n.t, err)
	stdout, err := p.cmd.StdoutPipe()
	must(n.t, err)
	must(n.t, p.cmd.Start())
	p.orders, p.said = json.NewEncoder(p.stdin), json.NewDecoder(stdout)
	if a := p.do("hello", file{}); a.Error != "" {
		p.kill()
		n.t.Fatalf("start %s: %s\n%s", uid, a.Error, p.stderr)
	}
	return p
}

// kill ends the pod with all its processes.
func (p *pod) kill() {
	if p.dead {
		return
	}
	p.dead = true
	_ = p.cmd.Process.Kill() // it may have ended by itself
	_ = p.cmd.Wait()         // killed, which is its error
	_ = p.stdin.Close()      // nobody reads it
	if bytes.Contains(p.stderr.Bytes(), []byte("DATA RACE")) {
		p.n.t.Errorf("a pod's program has a data race:\n%s", p.stderr)
	}
}

// do tells the pod to do something, and waits. A wrong byte fails the test at once, whatever the test expects.
func (p *pod) do(what string, f file) (a answer) {
	p.n.t.Helper()
	timer := time.AfterFunc(2*patience, func() { _ = p.cmd.Process.Kill() }) // so that the answer below ends
	defer timer.Stop()
	err := p.orders.Encode(order{what, f})
	if err == nil {
		err = p.said.Decode(&a)
	}
	if err != nil {
		a.Error = fmt.Sprintf("%s does not answer: %v: %s", p.uid, err, p.stderr)
	}
	if a.Wrong != "" {
		p.n.t.Fatalf("%s of %s in %s gives wrong bytes: %s", what, f.Name, p.uid, a.Wrong)
	}
	return a
}

// must is do for what has to work.
func (p *pod) must(what string, f file) answer {
	p.n.t.Helper()
	a := p.do(what, f)
	if a.Error != "" {
		p.n.t.Fatalf("%s of %s in %s: %s", what, f.Name, p.uid, a.Error)
	}
	return a
}

// soon is must for what may fail for a while, after a fault. Meanwhile kubelet publishes the volume again now and then, as
// requiresRepublish wants it.
func (p *pod) soon(what string, f file) (a answer, took time.Duration) {
	p.n.t.Helper()
	began := time.Now()
	republish := began.Add(3 * time.Second)
	ok := within(func() bool {
		if a = p.do(what, f); a.Error != "" && time.Now().After(republish) {
			_ = p.n.publishOnce(p.n.publishRequest(p.volume, p.uid)) // it comes again
			republish = time.Now().Add(3 * time.Second)
		}
		return a.Error == ""
	})
	if !ok {
		p.n.t.Fatalf("%s of %s in %s fails %v after a fault: %s", what, f.Name, p.uid, patience, a.Error)
	}
	return a, time.Since(began)
}
