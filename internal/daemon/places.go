package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/internal/mounts/handover"
	"github.com/hbmfs/hbmfs/internal/text/cli"
)

// checkPoint makes sure that a directory can be mounted on, or made for it where only its last name is missing: [places.makePoint]
// does that. It notes when the directory hides files.
func checkPoint(point, source string) (notes []string, err error) {
	info, err := os.Stat(point)
	if errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(filepath.Dir(point)); errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("the directory of the mount point does not exist: mkdir -p %s", filepath.Dir(point))
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("the mount point %s is not a directory", point)
	}
	if from, err := os.Stat(source); err == nil && os.SameFile(from, info) { // mounted in place, it hides itself
		return nil, nil
	}
	dir, err := os.Open(point)
	if err != nil {
		return nil, nil //nolint:nilerr // one that cannot be listed is taken for empty
	}
	defer func() { _ = dir.Close() }() // opened for reading: nothing is lost
	if names, err := dir.Readdirnames(1); err == nil && len(names) > 0 {
		notes = append(notes, fmt.Sprintf("%s was not empty: what is in it, %q for one, is hidden until hbmfs umount", point, names[0]))
	}
	return notes, nil
}

// checkApart makes sure that the directory of a volume is one, and that it and the mount point hide nothing of each other. flag is the
// volume's.
func checkApart(volume, source, point string) error {
	dir, err := os.Stat(source)
	if err != nil {
		return fmt.Errorf("open the directory of %s (mkdir -p makes it): %w", volume, err)
	}
	if !dir.IsDir() {
		return fmt.Errorf("%s: %s is no directory", volume, source)
	}
	on, err := os.Stat(point)
	if err == nil && os.SameFile(dir, on) {
		return fmt.Errorf("%s: %s cannot be mounted on itself: name another mount point", volume, source)
	}
	abs, err := filepath.Abs(source)
	if err != nil {
		return err
	}
	if rel, err := filepath.Rel(abs, point); err == nil && filepath.IsLocal(rel) {
		return fmt.Errorf("%s: the mount point %s lies in the directory itself: name one outside", volume, point)
	}
	return nil
}

// places are the paths of a mount, absolute: daemons work in another directory than the command that starts the first. They are a
// [handover.State].
type places struct {
	Source, Point, Log, CacheDir string

	Device, Inode uint64 // of a mount point that was made for the mount; 0 where it was there
	adopted       bool
}

var _ handover.State = (*places)(nil)

// Section implements [handover.State].
func (*places) Section() (string, uint32) { return "places", 1 }

// savedPlaces are places as they are saved: a name may be no text.
type savedPlaces struct {
	Paths         [4][]byte
	Device, Inode uint64
}

// Save implements [handover.State].
func (p *places) Save() ([]byte, error) {
	return json.Marshal(savedPlaces{[4][]byte{[]byte(p.Source), []byte(p.Point), []byte(p.Log), []byte(p.CacheDir)}, p.Device, p.Inode})
}

// Adopt implements [handover.State].
func (p *places) Adopt(section []byte) error {
	var s savedPlaces
	err := json.Unmarshal(section, &s)
	*p = places{string(s.Paths[0]), string(s.Paths[1]), string(s.Paths[2]), string(s.Paths[3]), s.Device, s.Inode, true}
	return err
}

// absolute makes the paths independent of the working directory.
func (p *places) absolute() error {
	for _, path := range []*string{&p.Source, &p.Log, &p.CacheDir} {
		if *path == "" || cli.IsRemote(*path) {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = abs
	}
	return nil
}

// makePoint makes the mount point where it is missing. The next daemon leaves it alone: it is mounted on.
func (p *places) makePoint() error {
	if p.adopted {
		return nil
	}
	switch err := os.Mkdir(p.Point, 0o755); {
	case errors.Is(err, os.ErrExist):
		return nil
	case err != nil:
		return fmt.Errorf("make the mount point: %w", err)
	}
	var st unix.Stat_t
	err := unix.Lstat(p.Point, &st)
	p.Device, p.Inode = st.Dev, st.Ino
	return err
}

// removePoint removes, after the mount, the directory that makePoint has made, if nobody has put anything
// there since.
func (p *places) removePoint() {
	var st unix.Stat_t
	if err := unix.Lstat(p.Point, &st); err == nil && p.Inode != 0 && st.Ino == p.Inode && st.Dev == p.Device {
		_ = unix.Rmdir(p.Point) // it stays where it is not empty, or mounted on; a file never goes
	}
}
