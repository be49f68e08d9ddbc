package checkpoint

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"
)

// Endings of the hidden names.
const (
	draftEnding = ".hbmfs.tmp"
	oldEnding   = ".hbmfs.old"
	lockEnding  = ".hbmfs.lock"
)

const (
	mostComponent = 255 // bytes, of Linux's filesystems
	mostPath      = 4096
)

// hidden gives a hidden name of a checkpoint.
func hidden(name, ending string) string { return "." + name + ending }

// ofHidden gives the checkpoint that a hidden name is of.
func ofHidden(base string) (name string, ok bool) {
	for _, ending := range []string{draftEnding, oldEnding, lockEnding} {
		if name, ok = strings.CutSuffix(base, ending); ok && strings.HasPrefix(name, ".") {
			name = name[1:]
			return name, checkName(name) == nil
		}
	}
	return "", false
}

// split gives the directory of a checkpoint, absolute, and its name.
func split(path string) (dir, name string, err error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", "", err
	}
	dir, name = filepath.Split(abs)
	if err := checkName(name); err != nil {
		return "", "", failf(ErrInvalid, "%q cannot be a checkpoint: %v", path, err)
	}
	return filepath.Clean(dir), name, nil
}

// checkName refuses names that no checkpoint can have.
func checkName(name string) error {
	switch {
	case name == "":
		return failf(ErrInvalid, "it has no name of its own")
	case strings.Contains(name, "/"):
		return failf(ErrInvalid, "its name has a slash")
	case name[0] == '.':
		return failf(ErrInvalid, "its name begins with a dot, as only drafts have it")
	case len(name) > mostComponent-len(hidden("", lockEnding)):
		return failf(ErrInvalid, "its name is longer than %d bytes", mostComponent-len(hidden("", lockEnding)))
	}
	return checkText(name)
}

// checkFileName refuses names of files that leave the checkpoint, or are the manifest's.
func checkFileName(name string) error {
	switch {
	case len(name) > mostPath:
		return failf(ErrInvalid, "it is longer than %d bytes", mostPath)
	case name == "." || !filepath.IsLocal(name) || filepath.Clean(name) != name:
		return failf(ErrInvalid, "it does not stay below the checkpoint in plain form")
	case strings.SplitN(name, "/", 2)[0] == ManifestName:
		return failf(ErrInvalid, "it is the manifest's")
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > mostComponent {
			return failf(ErrInvalid, "a part of it is longer than %d bytes", mostComponent)
		}
	}
	return checkText(name)
}

// CheckEntry refuses names of files and directories that no checkpoint can have, slash-separated, and trees that are too deep. below is how many
// directories are below one another in a directory.
func CheckEntry(name string, isDir bool, below int) error {
	deep := strings.Count(name, "/") + below
	if isDir {
		deep++
	}
	if deep > mostDepth {
		return failf(ErrInvalid, "it has directories %d deep, and a checkpoint has at most %d", deep, mostDepth)
	}
	return checkFileName(name)
}

// checkText refuses text that JSON and terminals cannot show.
func checkText(name string) error {
	if !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return failf(ErrInvalid, "its name has control characters, or is not UTF-8")
	}
	return nil
}

// nobody is the owner of root's files on an NFS server that does not trust root.
const nobody = 65534

// device is the filesystem that a file lies on.
func device(info os.FileInfo) uint64 {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return st.Dev
}

// inode is the number of a file on its filesystem.
func inode(info os.FileInfo) uint64 {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return st.Ino
}

// uid is the owner of a file.
func uid(info os.FileInfo) uint32 {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nobody
	}
	return st.Uid
}

// ours tells whether a file belongs to this user.
func ours(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	me := uint32(os.Geteuid())
	return ok && (st.Uid == me || me == 0 && st.Uid == nobody)
}
