package drain

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// StateName is the directory of the journals beside the checkpoints. In the bucket it is the prefix of messages between parts of a
// checkpoint.
const StateName = checkpoint.DrainState

const (
	lockName      = "lock"
	volumeName    = "volume"
	journalEnding = ".journal"
	mostJournal   = 1 << 30 // bytes
)

// ErrBusy says that another process drains the directory.
var ErrBusy = errors.New("another process drains it")

// state is the directory of the journals, locked.
type state struct {
	root   *os.Root
	lock   *os.File
	volume string // names this directory among those of all machines
}

// openState opens the directory of the journals, or makes it.
func openState(dir string) (s *state, err error) {
	defer func() {
		if err != nil && s != nil {
			s.close()
		}
		if err != nil {
			s, err = nil, fmt.Errorf("drain %s: %w", dir, err)
		}
	}()
	parent, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = parent.Close() }() // nothing was written through it
	if err := parent.Mkdir(StateName, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("its state cannot be kept there: %w", err)
	}
	info, err := parent.Lstat(StateName)
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || st.Uid != uint32(os.Geteuid()) {
		return nil, fmt.Errorf("%s is no directory of this user: remove it, or be that user", filepath.Join(dir, StateName))
	}
	s = &state{}
	if s.root, err = parent.OpenRoot(StateName); err != nil {
		return s, err
	}
	if opened, err := s.root.Stat("."); err != nil || !os.SameFile(info, opened) {
		return s, fmt.Errorf("%s was replaced while it was opened", filepath.Join(dir, StateName))
	}
	if s.lock, err = s.root.OpenFile(lockName, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return s, err
	}
	if err := unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return s, fmt.Errorf("%w: hbmfs checkpoint drain --status says how far it is", ErrBusy)
	} else if err != nil {
		return s, fmt.Errorf("lock it: %w", err)
	}
	return s, s.name(st.Ino, parent)
}

// name reads the volume's name, or makes one that survives a power loss. A copy of the directory is another volume: its inode tells.
// A volume that forgets its name is refused at its place, so a name that cannot be read is not replaced.
func (s *state) name(inode uint64, parent *os.Root) error {
	var v struct {
		Volume string `json:"volume"`
		Inode  uint64 `json:"inode"`
	}
	text, err := s.root.ReadFile(volumeName)
	if err == nil && json.Unmarshal(text, &v) == nil && len(v.Volume) == 32 && v.Inode == inode {
		s.volume = v.Volume
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read which volume it is: %w", err)
	}
	if err := syncDir(parent); err != nil {
		return err
	}
	var random [16]byte
	_, _ = rand.Read(random[:]) // it never fails
	v.Volume, v.Inode = hex.EncodeToString(random[:]), inode
	if text, err = json.Marshal(v); err != nil {
		return err
	}
	s.volume = v.Volume
	return s.write(volumeName, text, true)
}

// syncDir makes the names in a directory safe.
func syncDir(root *os.Root) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// write replaces a small file. One that is not synced may be lost with the power.
func (s *state) write(name string, text []byte, sync bool) error {
	f, err := s.root.OpenFile(name+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil && sync {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := s.root.Rename(name+".tmp", name); err != nil || !sync {
		return err
	}
	return syncDir(s.root)
}

func (s *state) close() {
	if s.lock != nil {
		_ = s.lock.Close() // and the lock with it
	}
	if s.root != nil {
		_ = s.root.Close() // its data was synced
	}
}

// names gives the checkpoints that have a journal.
func (s *state) names() ([]string, error) {
	d, err := s.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }() // opened for reading
	all, err := d.Readdirnames(-1)
	var names []string
	for _, base := range all {
		if name, ok := strings.CutSuffix(base, journalEnding); ok {
			names = append(names, name)
		}
	}
	return names, err
}

// journal records one checkpoint at its destination. Losing it, or its last lines, costs questions and no transfer. It may be used from
// several goroutines.
type journal struct {
	state *state
	name  string

	mu   sync.Mutex // guards the fields below
	file *os.File
	head head
	done map[string]stored // by name in the bucket
	open map[string]begun  // multipart uploads
	end  *remote           // it is remote
}

// head names the journal's checkpoint. One of something else is no journal of this.
type head struct {
	Manifest    string `json:"manifest"` // its SHA-256
	Destination string `json:"destination"`
	Volume      string `json:"volume"`
}

type stored struct {
	Size int64  `json:"size"`
	ETag string `json:"etag"`
	Part int64  `json:"part,omitempty"` // the size of the parts that it was stored in; 0: in one
}

type begun struct {
	ID   string `json:"upload"`
	Part int64  `json:"part"`
}

type remote struct {
	Size int64 `json:"size"` // of the manifest there
}

// line is one line of a journal.
type line struct {
	Head   *head   `json:"head,omitempty"`
	Name   string  `json:"name,omitempty"`
	Stored *stored `json:"stored,omitempty"`
	Begun  *begun  `json:"begun,omitempty"`
	Forget bool    `json:"forget,omitempty"` // the messages about the name
	Remote *remote `json:"remote,omitempty"`
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// journal reads the journal of a checkpoint. It has no head where there is none.
func (s *state) journal(name string) (*journal, error) {
	j := &journal{state: s, name: name, done: map[string]stored{}, open: map[string]begun{}}
	info, err := s.root.Lstat(name + journalEnding)
	if errors.Is(err, fs.ErrNotExist) {
		return j, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > mostJournal {
		return nil, fmt.Errorf("%s is no journal: remove it", filepath.Join(s.root.Name(), name+journalEnding))
	}
	text, err := s.root.ReadFile(name + journalEnding)
	if err != nil {
		return nil, err
	}
	good := j.read(text)
	if j.head == (head{}) {
		return j, nil
	}
	if j.file, err = s.root.OpenFile(name+journalEnding, os.O_WRONLY, 0o600); err != nil {
		return nil, err
	}
	if err = j.file.Truncate(int64(good)); err == nil { // a line that a kill cut
		_, err = j.file.Seek(int64(good), 0)
	}
	return j, err
}

// read takes the lines up to the first that is none, and gives how many bytes they have.
func (j *journal) read(text []byte) (good int) {
	lines := bufio.NewReader(bytes.NewReader(text))
	for {
		one, err := lines.ReadBytes('\n')
		var l line
		if err != nil || json.Unmarshal(one, &l) != nil {
			return good
		}
		if good == 0 && l.Head == nil {
			return 0
		}
		good += len(one)
		j.take(l)
	}
}

func (j *journal) take(l line) {
	switch {
	case l.Head != nil:
		j.head = *l.Head
	case l.Remote != nil:
		j.end = l.Remote
	case l.Forget:
		delete(j.done, l.Name)
		delete(j.open, l.Name)
	case l.Stored != nil:
		j.done[l.Name] = *l.Stored
		delete(j.open, l.Name)
	case l.Begun != nil:
		j.open[l.Name] = *l.Begun
	}
}

// begin makes the journal of a checkpoint anew.
func (j *journal) begin(h head) (err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closeFile()
	j.head, j.end, j.done, j.open = h, nil, map[string]stored{}, map[string]begun{}
	if j.file, err = j.state.root.OpenFile(j.name+journalEnding, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
		return err
	}
	return j.write(line{Head: &h})
}

// add notes something. A disk that is full, or fails, costs questions after a kill, and nothing else.
func (j *journal) add(l line) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.take(l)
	_ = j.write(l)
}

func (j *journal) write(l line) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if j.file == nil {
		return os.ErrClosed
	}
	_, err = j.file.Write(append(text, '\n'))
	return err
}

func (j *journal) stored(name string) (stored, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	s, ok := j.done[name]
	return s, ok
}

func (j *journal) begun(name string) (begun, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	b, ok := j.open[name]
	return b, ok
}

func (j *journal) remote() *remote {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.end
}

func (j *journal) closeFile() {
	if j.file != nil {
		_ = j.file.Close() // see add
		j.file = nil
	}
}

func (j *journal) close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closeFile()
}

// remove ends it.
func (j *journal) remove() error {
	j.close()
	if err := j.state.root.Remove(j.name + journalEnding); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Saved gives the status that the drain of a directory has said last, and whether its process lives.
func Saved(dir string) (s *status.Drain, alive bool, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = root.Close() }() // opened for reading
	text, err := root.ReadFile(filepath.Join(StateName, statusName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, fmt.Errorf("nothing drains %s, and nothing has: %w", dir, err)
	}
	if err != nil {
		return nil, false, err
	}
	s = &status.Drain{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, false, fmt.Errorf("the status of the drain of %s is damaged: %w", dir, err)
	}
	lock, err := root.Open(filepath.Join(StateName, lockName))
	if err != nil {
		return s, false, nil //nolint:nilerr // nobody has it
	}
	defer func() { _ = lock.Close() }() // and the descriptors that were taken with it
	return s, errors.Is(unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK), nil
}
