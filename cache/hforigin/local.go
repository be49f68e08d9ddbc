package hforigin

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Offline tells whether HF_HUB_OFFLINE keeps this process from asking the Hub.
func Offline() bool {
	switch strings.ToUpper(cmp.Or(os.Getenv("HF_HUB_OFFLINE"), os.Getenv("TRANSFORMERS_OFFLINE"))) {
	case "1", "ON", "YES", "TRUE":
		return true
	}
	return false
}

// local is the repository's directory in the cache of the Hub's own tools.
func (s Source) local() string {
	return filepath.Join(cmp.Or(os.Getenv("HF_HUB_CACHE"), filepath.Join(hubHome(), "hub")), s.Kind+"--"+strings.ReplaceAll(s.Name, "/", "--"))
}

// Cached returns the directory or file of the source in the cache of the Hub's own tools.
func (s Source) Cached() (string, error) {
	repo := s.local()
	commit := s.Revision
	if ref, err := os.ReadFile(filepath.Join(repo, "refs", filepath.FromSlash(s.Revision))); err == nil {
		commit = strings.TrimSpace(string(ref))
	}
	dir := filepath.Join(repo, "snapshots", commit)
	if _, err := os.Stat(filepath.Join(dir, s.Path)); !isHex(commit, 40) || errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("open %s: it is not in the local cache of the Hub (%s), and HF_HUB_OFFLINE is set: %w", s.at(""), repo, fs.ErrNotExist)
	} else if err != nil {
		return "", fmt.Errorf("open %s: %w", s.at(""), err)
	}
	return filepath.Join(dir, s.Path), nil
}
