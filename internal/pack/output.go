package pack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hbmfs/hbmfs/layout"
)

// output is the directory that is being written. Everything in it has a temporary name until publish. So abort can undo
// the run whole, and a dataset that --force replaces stays intact until its successor is complete. It is used by one
// goroutine.
type output struct {
	dir     string
	made    []string         // directories that did not exist before, the deepest first
	earlier map[string]int64 // name and size of an earlier pack's files here, by its manifest
	open    map[*outFile]bool
	done    []*outFile   // complete and synced, in the order in which they were finished
	swaps   bool         // publish has begun to give names, and is not through
	before  func() error // see swap

	base   string   // begins the prefixes of runs that exclude each other by lock; tempPrefix where there is no such lock
	prefix string   // of the names of temporary files
	lock   *os.File // the directory, locked
	saved  bool     // a state file tells of this run
	trash  []string // scratch files that the state file may name; they go when it is saved again
}

// tempPrefix begins the names of temporary files. noFollow keeps from following a link in the place of one.
const (
	tempPrefix = ".hbmfs-pack-"
	noFollow   = syscall.O_NOFOLLOW
)

// newOutput makes dir if need be and refuses one that holds anything, unless force is set.
func newOutput(dir string, force bool) (*output, error) {
	o := &output{dir: dir, open: map[*outFile]bool{}}
	entries, err := os.ReadDir(dir)
	entries = slices.DeleteFunc(entries, isTemp) // begin judges them, under the lock
	switch {
	case errors.Is(err, fs.ErrNotExist):
		o.made = missingDirs(dir)
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return nil, errors.Join(fmt.Errorf("make the output directory: %w", err), o.abort())
		}
	case err != nil:
		return nil, fmt.Errorf("open the output directory: %w", err)
	case !force && slices.ContainsFunc(entries, ofSwap):
		return nil, fmt.Errorf("a pack was stopped in %s while it gave the files their names: use --force, which first undoes it", dir)
	case len(entries) > 0 && !force:
		return nil, fmt.Errorf("%s is not empty: choose another directory, or use --force to write into it", dir)
	}
	if err := o.acquire(); err != nil {
		return nil, err
	}
	if err := o.settle(); err != nil { // of a run that was killed
		return nil, errors.Join(err, o.lock.Close())
	}
	if o.earlier, err = readEarlier(dir); err != nil {
		return nil, errors.Join(err, o.lock.Close())
	}
	return o, nil
}

// acquire locks the directory, so that no two runs take each other's state for theirs.
func (o *output) acquire() (err error) {
	if o.lock, err = os.Open(o.dir); err != nil {
		return fmt.Errorf("open the output directory: %w", err)
	}
	err = syscall.Flock(int(o.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errors.Join(fmt.Errorf("another pack writes into %s now", o.dir), o.lock.Close())
	}
	o.base = tempPrefix // a filesystem without locks has to do without
	if err == nil {
		o.base = o.lockedBase()
	}
	o.newPrefix()
	return nil
}

// lockedBase names the reach of the lock: this kernel and this mounted filesystem. NFS, Lustre and FUSE lock a directory
// for no other machine, and not for a second mount of the same files.
func (o *output) lockedBase() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	var st syscall.Stat_t
	if err != nil || syscall.Fstat(int(o.lock.Fd()), &st) != nil {
		return tempPrefix
	}
	return fmt.Sprintf("%s%s-%x-", tempPrefix, strings.TrimSpace(string(boot)), st.Dev)
}

func (o *output) newPrefix() {
	o.prefix = fmt.Sprintf("%s%d-%d-", o.base, os.Getpid(), time.Now().UnixNano())
}

// close ends the lock.
func (o *output) close() { o.lock.Close() } //nolint:errcheck // a directory

// isTemp reports whether a directory's entry is of a run that is not complete.
func isTemp(e fs.DirEntry) bool {
	return e.Name() == stateName || strings.HasPrefix(e.Name(), tempPrefix) && strings.HasSuffix(e.Name(), ".tmp")
}

// keep closes the files and leaves them to the next run.
func (o *output) keep() {
	for f := range o.open {
		f.f.Close() //nolint:errcheck // the state file says how much of it counts, which was synced
	}
	o.open = map[*outFile]bool{}
}

// missingDirs returns the directories that are to be made for dir, the deepest first.
func missingDirs(dir string) (missing []string) {
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) {
			return missing
		}
		missing = append(missing, at)
	}
}

// outFile is one file of an output, buffered. patch may rewrite earlier bytes.
type outFile struct {
	out  *output
	f    *os.File
	w    *bufio.Writer
	size int64
	sums layout.ManifestFile // Name, Tokens and Documents are the writer's; finish sets the rest
}

// create starts the file that will be called name. It refuses a name that is taken by a file of somebody else.
func (o *output) create(name string) (*outFile, error) {
	if info, err := os.Lstat(filepath.Join(o.dir, name)); err == nil && !o.replaceable(name, info) {
		return nil, fmt.Errorf("%q in %s is there and no earlier pack wrote it: move it away, or choose another directory", name, o.dir)
	}
	f, err := os.CreateTemp(o.dir, o.prefix+"*.tmp")
	if err != nil {
		return nil, fmt.Errorf("create %q: %w", name, err)
	}
	of := o.newFile(f, fileState{Sums: layout.ManifestFile{Name: name}})
	o.open[of] = true
	return of, nil
}

func (o *output) newFile(f *os.File, s fileState) *outFile {
	return &outFile{out: o, f: f, w: bufio.NewWriterSize(f, 1<<20), size: s.Size, sums: s.Sums}
}

func (f *outFile) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	f.size += int64(n)
	if err != nil {
		return n, fmt.Errorf("write %q: %w", f.sums.Name, err)
	}
	return n, nil
}

// patch overwrites bytes that Write wrote before.
func (f *outFile) patch(p []byte, off int64) error {
	if err := f.w.Flush(); err != nil {
		return fmt.Errorf("write %q: %w", f.sums.Name, err)
	}
	if _, err := f.f.WriteAt(p, off); err != nil {
		return fmt.Errorf("write %q: %w", f.sums.Name, err)
	}
	return nil
}

// finish sums, syncs and closes the file. It then waits for publish.
func (f *outFile) finish(ctx context.Context) error {
	name := f.sums.Name
	if err := f.w.Flush(); err != nil {
		return fmt.Errorf("write %q: %w", name, err)
	}
	if err := f.sums.SumFile(ctx, f.f, f.size); err != nil {
		return fmt.Errorf("checksum %q: %w", name, err)
	}
	// CreateTemp's 0600 would lock out the mount's and the loaders' users.
	if err := f.f.Chmod(0o644); err != nil {
		return fmt.Errorf("set the mode of %q: %w", name, err)
	}
	if err := f.f.Sync(); err != nil {
		return fmt.Errorf("sync %q: %w", name, err)
	}
	if err := f.f.Close(); err != nil {
		return fmt.Errorf("close %q: %w", name, err)
	}
	delete(f.out.open, f)
	f.out.done = append(f.out.done, f)
	return nil
}

// discard closes and removes a scratch file.
func (f *outFile) discard() {
	delete(f.out.open, f)
	f.f.Close() //nolint:errcheck // nobody reads it again
	f.out.trash = append(f.out.trash, f.f.Name())
	if !f.out.saved {
		f.out.empty()
	}
}

// empty removes the scratch files that nobody needs again.
func (o *output) empty() {
	for _, name := range o.trash {
		os.Remove(name) //nolint:errcheck // one that is left does no harm
	}
	o.trash = nil
}

// end removes the state file: its shards are complete, or go.
func (o *output) end() error {
	if !o.saved {
		return nil
	}
	o.saved = false
	o.empty()
	if err := os.Remove(filepath.Join(o.dir, stateName)); err != nil {
		return fmt.Errorf("remove the state: %w", err)
	}
	return syncDir(o.dir)
}

// abort removes every file of this run, and the directories that it made. An error names the remains.
func (o *output) abort() error {
	for f := range o.open {
		f.discard()
	}
	var err error
	if o.swaps {
		err = o.settle()
	}
	err = errors.Join(err, o.end())
	for _, f := range o.done {
		os.Remove(f.f.Name()) //nolint:errcheck // the user needs the run's own error
	}
	o.done, o.swaps = nil, false
	for _, dir := range o.made {
		os.Remove(dir) //nolint:errcheck // fails, and should, when somebody else put something there
	}
	return err
}

// settle undoes or finishes a publish that was begun.
func (o *output) settle() error {
	s, err := o.openSwap()
	if err != nil {
		return err
	}
	defer s.root.Close() //nolint:errcheck // a directory
	if err := s.settle(); err != nil {
		return fmt.Errorf("%s is between two datasets, the files of the earlier one that are not in it lie in %s: remove the cause and use --force again: %w",
			o.dir, filepath.Join(o.dir, earlierDir), err)
	}
	return nil
}

// publish gives all finished files and then the manifest their names.
func (o *output) publish(ctx context.Context, m *layout.Manifest) error {
	for _, f := range o.done {
		m.Files = append(m.Files, f.sums)
		m.Tokens += f.sums.Tokens
		m.Documents += f.sums.Documents
	}
	data, err := m.Marshal()
	if err != nil {
		return err
	}
	manifest, err := o.create(layout.ManifestName)
	if err != nil {
		return err
	}
	if _, err := manifest.Write(data); err != nil {
		return err
	}
	if err := manifest.finish(ctx); err != nil { // last in done, so it is renamed last
		return err
	}
	for _, dir := range o.made {
		if err := syncDir(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	return o.swap()
}

// swap gives the finished files, of which the manifest is the last, the place of the earlier ones.
func (o *output) swap() error {
	s, err := o.openSwap()
	if err != nil {
		return err
	}
	defer s.root.Close() //nolint:errcheck // a directory
	earlier, err := o.retirable(s.root)
	if err != nil {
		return err
	}
	err = s.retire(earlier)
	o.swaps = !errors.Is(err, fs.ErrExist) // else the swap is another run's
	if err != nil {
		return err
	}
	if err := s.announce(o.done); err != nil {
		return err
	}
	if err := o.end(); err != nil { // of which one is always there while files have temporary names, see clear
		return err
	}
	if err := s.publish(o.done); err != nil {
		return err
	}
	o.done, o.swaps = nil, false
	if err := s.drop(); err != nil {
		return fmt.Errorf("the new dataset in %s is complete, but the earlier one cannot be removed: remove %s: %w",
			o.dir, filepath.Join(o.dir, earlierDir), err)
	}
	return nil
}

// readEarlier returns the files that the manifest in dir lists.
func readEarlier(dir string) (map[string]int64, error) {
	data, err := os.ReadFile(filepath.Join(dir, layout.ManifestName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the earlier manifest: %w", err)
	}
	old, err := layout.ParseManifest(data)
	if err != nil {
		return nil, fmt.Errorf("the earlier manifest in %s is in the way: %w", dir, err)
	}
	sizes := map[string]int64{layout.ManifestName: int64(len(data))}
	for _, f := range old.Files {
		sizes[f.Name] = f.Size
	}
	return sizes, nil
}

func (o *output) replaceable(name string, info fs.FileInfo) bool {
	size, ok := o.earlier[name]
	return ok && info.Mode().IsRegular() && info.Size() == size
}

// retirable returns the files that an earlier pack wrote here, the manifest first. Shards of two runs side by side
// would be read as one dataset. Files that no manifest lists, or whose size is another, stay.
func (o *output) retirable(root *os.Root) ([]string, error) {
	var names []string
	for name := range o.earlier {
		if strings.ContainsRune(name, '/') || name == layout.ManifestName { // no pack writes into directories
			continue
		}
		if info, err := root.Lstat(name); err == nil && o.replaceable(name, info) {
			names = append(names, name)
		}
	}
	if o.earlier == nil {
		return nil, nil
	}
	if info, err := root.Lstat(layout.ManifestName); err != nil || !o.replaceable(layout.ManifestName, info) {
		return nil, fmt.Errorf("%s in %s has changed since this run began: run it again", layout.ManifestName, o.dir)
	}
	return append([]string{layout.ManifestName}, names...), nil
}

// ofSwap reports whether a directory's entry is left by a publish that was killed.
func ofSwap(e fs.DirEntry) bool { return e.Name() == earlierDir || e.Name() == successorName }

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	defer d.Close() //nolint:errcheck // only synced
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
