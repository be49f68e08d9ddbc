// Package host keeps the daemons of a node's volumes. It starts one hbmfs for each different volume, and shows its mount
// to every pod that asks for the same. It starts the daemon again when it dies, and ends it with the last pod.
//
// It is a process apart from the CSI plugin, which forwards kubelet's calls to it and can be replaced at any time. It
// records each request before it does anything (volumes/KEY/volume.json: the volume and its users), and reads the rest
// from the mount table and from /proc. So a host that was killed at any step is continued by the next one: see
// [Host.Start].
//
// Locks: Host.mu guards the maps and all records, and is held for moments. All work on a volume's daemon and mounts is
// done under its lock, for as long as that takes. Work for one target or volume id is done once at a time. It goes on
// when the caller has given up waiting, so that kubelet's next try finds it done.
package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hbmfs/hbmfs/internal/csi/volume"
	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/sys/aside"
	"github.com/hbmfs/hbmfs/internal/sys/pause"
	"github.com/hbmfs/hbmfs/internal/sys/trust"
)

// Options of a host.
type Options struct {
	StateDir       string   // absolute, without links
	CacheDir       string   // of the daemons
	CacheMinFree   int64    // bytes that the cache leaves free of its disk at least; 0: a fifth where kubelet watches that disk
	MaxDaemons     int      // of the node; 0: no limit
	MaxOfNamespace int      // of one namespace's pods; 0: no limit
	KubeletDir     string   // nothing is mounted or removed outside it
	HBMFS          string   // the program
	AllowSource    []string // directories whose content volumes may show
	// AllowCheckpoints and AllowKV are directories below which checkpoint volumes and KV volumes may lie.
	AllowCheckpoints []string
	AllowKV          []string
	KVMemory         int64         // bytes of memory that all KV volumes together may take
	DrainPatience    time.Duration // how long the daemon of a volume that nobody uses goes on without a success of its drain
	AllowAddress     []string      // of this node's own, prefixes too, where volumes may have their source
	Helper           []string      // a command that calls mounts.Inside
	Log              *slog.Logger
}

// Host is the keeper of a node's daemons.
type Host struct {
	opt  Options
	log  *slog.Logger
	ctx  context.Context // of all work; ends with Close
	stop context.CancelFunc
	work sync.WaitGroup
	lock *os.File // one host for a state directory

	prefix string // of the names of this host's mounts

	waiting  context.Context // of goroutines that wait for the end of a daemon; ends when all work has
	stopWait context.CancelFunc
	waits    sync.WaitGroup

	looks singleflight.Group // at directories
	asker *aside.Asker       // of daemons
	held  held               // copies of the keepers' descriptors

	mu      sync.Mutex
	volumes map[string]*nodeVolume // by the name of their directory
	busy    map[string]func()      // calls off the work for a target or a volume id
	counts  counts
	looking map[string]int // looks at directories that are under way, by the namespace that they are for
}

// counts are for the metrics.
type counts struct{ starts, deaths, failedStarts, replaced, refused int64 }

// New makes a host. Start begins its work, Close ends it.
func New(ctx context.Context, opt Options) (*Host, error) {
	for _, dir := range []string{opt.StateDir, filepath.Join(opt.StateDir, "volumes")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make the state directory: %w", err)
		}
	}
	dir, err := trust.Dir(opt.StateDir)
	if err == nil {
		_, err = trust.Below(dir, "volumes") // its records decide on mounts, and on their keys
	}
	if err != nil {
		return nil, fmt.Errorf("open the state directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(opt.StateDir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	if err := waitForLock(ctx, lock); err != nil {
		_ = lock.Close() // nothing was written
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	waiting, stopWait := context.WithCancel(context.Background())
	return &Host{
		opt: opt, log: opt.Log, ctx: ctx, stop: stop, lock: lock, waiting: waiting, stopWait: stopWait,
		prefix:  "hbmfs-csi:" + volume.Identity(opt.StateDir)[:8] + ":", // there may be two drivers on a node
		asker:   &aside.Asker{Program: opt.HBMFS, Patience: askTime, Life: ctx},
		held:    held{copies: map[string]handover.Copy{}, serves: map[string]*daemon{}, holders: map[int]bool{}, told: make(chan struct{})},
		volumes: map[string]*nodeVolume{}, busy: map[string]func(){}, looking: map[string]int{},
	}, nil
}

// lockTime is how long another host may take to end. A process that it started just before may have the lock for a moment
// longer.
const lockTime = 5 * time.Second

func waitForLock(ctx context.Context, lock *os.File) error {
	for end := time.Now().Add(lockTime); unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil; {
		if time.Now().After(end) {
			return fmt.Errorf("lock %s: another hbmfs-csi host works there: end it first", lock.Name())
		}
		if err := pause.For(ctx, pause.Look); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the host's work and leaves the daemons and their mounts as they are: the next host goes on with them.
func (h *Host) Close() error {
	h.stop()
	h.work.Wait()
	h.stopWait()
	h.waits.Wait()
	h.held.close()
	return h.lock.Close()
}

// do runs op for a name, unless work for it is under way already. It returns with the caller's context, but op ends in
// its own time.
func (h *Host) do(ctx context.Context, name string, op func(context.Context) error) error {
	return h.run(ctx, name, op, true)
}

// undo is do for the end of a use. Work on its beginning is called off.
func (h *Host) undo(ctx context.Context, name string, op func(context.Context) error) error {
	h.mu.Lock()
	if callOff := h.busy[name]; callOff != nil {
		callOff()
	}
	h.mu.Unlock()
	return h.run(ctx, name, op, false)
}

func (h *Host) run(ctx context.Context, name string, op func(context.Context) error, mayBeCalledOff bool) error {
	opCtx, callOff := context.WithCancel(h.ctx)
	h.mu.Lock()
	if h.busy[name] != nil {
		h.mu.Unlock()
		callOff()
		return status.Errorf(codes.Aborted, "%s is being worked on: try again", name)
	}
	h.busy[name] = func() {}
	if mayBeCalledOff {
		h.busy[name] = callOff
	}
	h.mu.Unlock()
	done := make(chan error, 1)
	h.work.Go(func() {
		defer callOff()
		err := op(opCtx)
		h.mu.Lock()
		delete(h.busy, name)
		h.mu.Unlock()
		done <- err
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// claim finds or makes the volume of a want, unless it is known to be old, and has its use recorded.
func (h *Host) claim(w volume.Want, old *nodeVolume, u use) (*nodeVolume, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := old
	if v == nil {
		v = h.find(w.Spec)
	}
	if v != nil {
		if err := v.rec.sameGroup(u.pod); err != nil {
			return nil, err
		}
	}
	if v == nil || v.rec.idle() {
		if err := h.roomFor(v, w, u.namespace); err != nil {
			return nil, err
		}
	}
	fresh := v == nil
	if fresh {
		v = newNodeVolume(h, w.Key(), record{Spec: w.Spec})
		for n := 2; h.volumes[v.key] != nil; n++ { // a volume whose credentials changed has the name of its first ones
			v.key = fmt.Sprintf("%s-%d", w.Key(), n)
		}
		if err := os.Mkdir(v.dir(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("make the directory of the volume: %w", err)
		}
		h.volumes[v.key] = v
	}
	if err := v.change(func(r *record) { u.add(r); r.noLinger() }); err != nil {
		if fresh {
			delete(h.volumes, v.key)
			err = errors.Join(err, v.remove())
		}
		return nil, err
	}
	return v, nil
}

func (h *Host) find(spec volume.Spec) *nodeVolume {
	for _, v := range h.volumes {
		if v.rec.Spec.Key() == spec.Key() {
			return v
		}
	}
	return nil
}

// end stops the daemon of a volume that nobody uses, and removes its directory.
func (h *Host) end(ctx context.Context, v *nodeVolume) error {
	if locked, err := v.acquireToEnd(ctx, 0); err != nil || !locked { // somebody came, and waits
		return err
	}
	defer v.unlock()
	if !h.unused(v) {
		return nil
	}
	if err := v.stop(); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.volumes[v.key] != v || !v.rec.over() { // somebody came meanwhile
		return nil
	}
	delete(h.volumes, v.key)
	return v.remove()
}

// unused tells whether a volume is still known, has no users, and need not linger.
func (h *Host) unused(v *nodeVolume) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.volumes[v.key] == v && v.rec.over()
}

// wanted tells whether a volume is still known, and has users or lingers.
func (h *Host) wanted(v *nodeVolume) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.volumes[v.key] == v && !v.rec.over()
}

// staged and published find the volume that has a volume id staged, or a target published. They need mu.
func (h *Host) staged(id string) *nodeVolume {
	for _, v := range h.volumes {
		if _, ok := v.rec.Staged[id]; ok {
			return v
		}
	}
	return nil
}

func (h *Host) published(target string) (*nodeVolume, pod) {
	for _, v := range h.volumes {
		if p, ok := v.rec.Published[target]; ok {
			return v, p
		}
	}
	return nil, pod{}
}

// want reads a request, and checks it as far as it can without starting anything.
func (h *Host) want(ctx context.Context, r volume.Request) (volume.Want, error) {
	h.mu.Lock()
	staged := h.staged(r.ID)
	var was volume.Spec
	if staged != nil {
		was = staged.rec.Spec
	}
	h.mu.Unlock()
	r.StagedAuth = was.Auth
	w, err := volume.Parse(r)
	if err != nil {
		return w, err
	}
	if w.Auth == volume.AuthSecret && w.Credentials == nil {
		if staged == nil {
			return w, status.Errorf(codes.FailedPrecondition, "volume %s is not staged on this node and the call has no secret: name the secret in nodePublishSecretRef, too", r.ID)
		}
		w.Identity = was.Identity
		if w.Credentials, err = os.ReadFile(staged.path("credentials")); err != nil {
			return w, fmt.Errorf("read the credentials that the volume was staged with: %w", err)
		}
	}
	return w, h.allowed(ctx, w.Spec, r.Attributes[volume.PodNamespace], r.Inline())
}

// lookOnce looks at a directory for all who want to know the same. A look waits for the directory's filesystem, whose server may be
// gone. No caller waits longer than ctx.
func (h *Host) lookOnce(ctx context.Context, namespace, name string, look func() error) error {
	found := h.looks.DoChan(name, func() (any, error) { // one waits there, however often kubelet asks
		if err := h.beginLook(namespace); err != nil {
			return nil, err
		}
		defer h.endLook(namespace)
		return nil, look()
	})
	select {
	case r := <-found:
		return r.Err
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// look refuses directories that volumes may not show.
func (h *Host) look(dir string) error {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		real = dir // by its name alone: nobody is told whether a directory is there that is not allowed
	}
	inside := slices.ContainsFunc(h.opt.AllowSource, func(prefix string) bool {
		if p, err := filepath.EvalSymlinks(prefix); err == nil && below(real, p) {
			return true
		}
		return err != nil && below(real, prefix)
	})
	switch {
	case !inside:
		return status.Errorf(codes.FailedPrecondition, "volume attribute source=%s: directories of the node are shown below the prefixes of hbmfs-csi host --allow-source only, and this is not below one of %q", dir, h.opt.AllowSource)
	case errors.Is(err, fs.ErrNotExist):
		return status.Errorf(codes.NotFound, "volume attribute source=%s: there is no such directory on this node", dir)
	case errors.Is(err, fs.ErrPermission):
		return status.Errorf(codes.PermissionDenied, "volume attribute source=%s: it may not be read", dir)
	case err != nil:
		return status.Errorf(codes.Internal, "volume attribute source=%s: %v", dir, err)
	}
	return nil
}

// below tells whether a path is dir or in it.
func below(path, dir string) bool {
	return path != "" && (path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/"))
}
