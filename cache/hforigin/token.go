package hforigin

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// hubHome is the directory of the Hub's own tools, HF_HOME.
func hubHome() string {
	if home := os.Getenv("HF_HOME"); home != "" {
		return home
	}
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "/nonexistent" // so that the working directory is not taken for it
		}
		cache = filepath.Join(home, ".cache")
	}
	return filepath.Join(cache, "huggingface")
}

// token finds the token where the Hub's own tools find it. It is looked for at each request to the Hub, so that a file may get
// another one. It is "" where there is none.
func token() (string, error) {
	where, text := "HF_TOKEN", cmp.Or(os.Getenv("HF_TOKEN"), os.Getenv("HUGGING_FACE_HUB_TOKEN"))
	if text == "" {
		name := cmp.Or(os.Getenv("HF_TOKEN_PATH"), filepath.Join(hubHome(), "token"))
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		if err != nil {
			return "", fmt.Errorf("%w: read the token: %w", fs.ErrPermission, err)
		}
		defer func() { _ = f.Close() }() // opened for reading: nothing is lost
		const most = 4096
		data, err := io.ReadAll(io.LimitReader(f, most))
		if err != nil {
			return "", fmt.Errorf("read the token: %w", err)
		}
		where, text = name, string(data)
	}
	text = strings.TrimSpace(text)
	if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%w: the token in %s has characters that no token has", fs.ErrInvalid, where)
	}
	return text, nil
}
