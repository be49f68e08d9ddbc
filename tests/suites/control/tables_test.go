package control_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/control"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// shardsOfView is how many objects one ticket of this suite's view names: as many as one may.
const shardsOfView = control.MaxObjects

// TestOneUserCannotTakeAll has one user take of every table of the daemon as much as it gets, and go on asking. Another
// user, and root, are served all the same.
func TestOneUserCannotTakeAll(t *testing.T) {
	blackbox.NeedRoot(t)
	source := suite.NewDir(t)
	for i := range shardsOfView {
		shard(t, filepath.Join(source, fmt.Sprintf("set/shard_%06d.bin", i)), 0, 0, 0o644)
	}
	m := mount(t, source)
	served(t, m, "set/shard_000000.bin")
	m.idle(t, math.MaxInt)
	fds := m.fds(t)
	greedy := childCommand(t, true, "greedy", m.Path())
	var stderr bytes.Buffer
	greedy.Stderr = &stderr
	in, err := greedy.StdinPipe()
	must(t, err)
	out, err := greedy.StdoutPipe()
	must(t, err)
	must(t, greedy.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "full: ") {
		t.Fatalf("the greedy user: %s, %v: %s", line, err, &stderr)
	}
	s := m.status(t)
	t.Logf("%s%d connections, %d leases", line, s.Connections, s.Leases)
	for _, uid := range []uint32{alice, bob, 0} {
		cmd := childCommand(t, false, "modest", m.Path())
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || !strings.HasPrefix(got, "served within ") {
			t.Errorf("user %d beside it: %s, %v", uid, got, err)
		} else {
			t.Logf("user %d is %s", uid, got)
		}
	}
	must(t, in.Close())
	_, _ = io.Copy(io.Discard, out) // until it has ended
	must(t, greedy.Wait())
	m.idle(t, fds)
}

// childGreedy (MOUNT) fills the tables, says so, and asks on until its standard input ends.
func childGreedy(_ context.Context, args []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*patience)
	defer cancel()
	g := &greed{ctx: ctx, mount: args[0]}
	var said []string
	for _, take := range []func() (string, error){g.connections, g.leases, g.tickets, g.texts} {
		s, err := take()
		if err != nil {
			return "", fmt.Errorf("%s: %w", s, err)
		}
		said = append(said, s)
	}
	go g.prefetch() // these end with the process
	busy := 8
	if blackbox.Race {
		busy = 2 // they take all of two CPUs
	}
	for _, c := range g.clients[:busy] {
		go g.lookup(c)
	}
	time.Sleep(100 * time.Millisecond) // they are at it
	fmt.Println("full:", strings.Join(said, ", "))
	_, _ = io.Copy(io.Discard, os.Stdin)
	return "", nil
}

// greed is a user that takes all it gets.
type greed struct {
	ctx     context.Context // of the one thing that this process does
	mount   string
	clients []*control.Client
	opened  []*os.File
}

// refusedFor says that there is no more, which is what is asked for.
func refusedFor(err error) bool {
	return errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EMFILE)
}

func (g *greed) connections() (string, error) {
	for i := 0; ; i++ {
		c, err := control.DialReader(g.ctx, g.mount, fmt.Sprintf("greedy %d", i), uint32(i+1))
		if refusedFor(err) {
			return fmt.Sprintf("%d connections", i), nil
		}
		if err != nil {
			return "connect", err
		}
		g.clients = append(g.clients, c)
	}
}

// view opens the view over all shards.
func (g *greed) view() (*os.File, error) { return openView(g.mount) }

func openView(mount string) (*os.File, error) {
	return os.Open(filepath.Join(mount, ".hbmfs/views/set/tokens.bin"))
}

func (g *greed) leases() (string, error) {
	f, err := g.view()
	if err != nil {
		return "open the view", err
	}
	n := 0
	for _, c := range g.clients {
		for !blackbox.Race || n < 1<<12 { // more takes long: `make soak-random` takes all that one may have
			if err := redeemAll(g.ctx, f, c); refusedFor(err) {
				break
			} else if err != nil {
				return "redeem", err
			}
			n += shardsOfView
		}
	}
	return fmt.Sprintf("%d leases", n), nil
}

// redeemAll leases all objects of a file, and closes them.
func redeemAll(ctx context.Context, f *os.File, c *control.Client) error {
	for b, err := range control.Batches(f, 0, math.MaxInt64, true) {
		if err != nil {
			return err
		}
		files, err := c.Redeem(ctx, b.Ticket, b.Objects())
		if err != nil {
			return err
		}
		for _, o := range files {
			if o.Err != nil {
				return o.Err
			}
			if err := o.File.Close(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *greed) tickets() (string, error) {
	f, err := g.view()
	if err != nil {
		return "open the view", err
	}
	many := 5000 // more than all users may have
	if blackbox.Race {
		many = 300 // more than one may have: each names all shards, which takes long
	}
	for range many {
		for _, err := range control.Batches(f, 0, math.MaxInt64, true) {
			if err != nil {
				return "ask for extents", err
			}
		}
	}
	return fmt.Sprintf("%d tickets", many), nil
}

func (g *greed) texts() (string, error) {
	for {
		f, err := os.Open(filepath.Join(g.mount, ".hbmfs/metrics"))
		if refusedFor(err) {
			return fmt.Sprintf("%d texts", len(g.opened)), nil
		}
		if err != nil {
			return "open a text", err
		}
		g.opened = append(g.opened, f)
	}
}

// prefetch asks for all of the view as often as it can, with jobs that take long.
func (g *greed) prefetch() {
	f, err := g.view()
	if err != nil {
		return
	}
	ranges := make([]control.Range, control.MaxRanges)
	for i := range ranges {
		ranges[i] = control.Range{Length: math.MaxInt64}
	}
	for g.ctx.Err() == nil {
		_ = control.Prefetch(f, ranges...) // most are refused
	}
}

func (g *greed) lookup(c *control.Client) {
	names := make([]string, shardsOfView)
	for i := range names {
		names[i] = fmt.Sprintf("set/shard_%06d.bin", i)
	}
	for g.ctx.Err() == nil {
		for _, err := range c.Lookup(g.ctx, names) {
			_ = err // most are refused
		}
	}
}

// childModest (MOUNT) asks for a little of each.
func childModest(ctx context.Context, args []string) (string, error) {
	began := time.Now()
	name := fmt.Sprintf("modest %d", os.Getuid())
	c, err := control.Dial(ctx, args[0], name)
	if err != nil {
		return "", fmt.Errorf("connect: %s", said(err))
	}
	f, err := openView(args[0])
	if err != nil {
		return "", fmt.Errorf("open the view: %s", said(err))
	}
	if err := redeemAll(ctx, f, c); err != nil {
		return "", fmt.Errorf("redeem: %s", said(err))
	}
	other, err := control.Dial(ctx, args[0], name)
	if err != nil {
		return "", fmt.Errorf("connect again: %s", said(err))
	}
	if err := readLookup(ctx, other, "set/shard_000001.bin"); err != nil {
		return "", fmt.Errorf("look up: %s", said(err))
	}
	if err := control.Prefetch(f, control.Range{Length: 1 << 20}); err != nil {
		return "", fmt.Errorf("prefetch: %s", said(err))
	}
	if err := readOne(f.Name()); err != nil {
		return "", fmt.Errorf("read: %s", said(err))
	}
	status, err := os.ReadFile(filepath.Join(args[0], ".hbmfs/status"))
	if err != nil || !bytes.Contains(status, []byte(name)) {
		return "", fmt.Errorf("the status does not name it: %s", said(err))
	}
	took := time.Since(began)
	if took > patience/2 {
		return "", fmt.Errorf("it took %v", took)
	}
	return fmt.Sprintf("served within %v", took.Round(time.Millisecond)), errors.Join(c.Close(), other.Close(), f.Close())
}
