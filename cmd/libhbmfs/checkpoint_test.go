package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// TestCheckpoints goes the way of a checkpoint through handles, with each mistake on it.
func TestCheckpoints(t *testing.T) {
	l := newLibrary()
	dir := t.TempDir()
	at := filepath.Join(dir, "step_1")
	one := checkpoint.Part{Of: 1}
	_, err := l.beginDraft(at, checkpoint.Part{})
	want(t, "begin part 0 of 0", err, codeInvalid)
	_, err = l.beginDraft(filepath.Join(dir, ".hidden"), one)
	want(t, "begin a hidden one", err, codeInvalid)
	d, err := l.beginDraft(at, one)
	want(t, "begin", err, codeOK)
	_, err = l.beginDraft(at, one)
	want(t, "begin again", err, codeBusy)
	want(t, "publish what is not there", l.publish(d, []checkpoint.File{{Name: "a"}}), codeInvalid)
	want(t, "publish nothing", l.publish(d, nil), codeOK)
	want(t, "publish again", l.publish(d, nil), codeClosed)
	want(t, "drop what was published", l.drop(d), codeClosed)
	_, err = l.beginDraft(at, one)
	want(t, "begin over it", err, codeExists)
	dropped, err := l.beginDraft(filepath.Join(dir, "step_2"), one)
	want(t, "begin another", err, codeOK)
	want(t, "drop", l.drop(dropped), codeOK)
	want(t, "drop again", l.drop(dropped), codeClosed)
	want(t, "cancel a draft", l.cancel(dropped, 0), codeClosed)
	if err := os.Symlink("/", filepath.Join(dir, ".step_3.hbmfs.tmp")); err != nil {
		t.Fatal(err)
	}
	_, err = l.beginDraft(filepath.Join(dir, "step_3"), one)
	want(t, "begin at a link", err, codePermission)
	found, err := complete(dir)
	if want(t, "list", err, codeOK); len(found) != 1 || found[0].Name != "step_1" {
		t.Errorf("%+v", found)
	}
	_, err = complete(filepath.Join(dir, "none"))
	want(t, "list what is not there", err, codeNotFound)

	verify := func(path string) error {
		v, err := l.beginVerify(path, 2)
		if err != nil {
			return err
		}
		_, err = l.awaitVerify(v, -1)
		_, again := l.awaitVerify(v, -1)
		want(t, "wait again", again, codeClosed)
		want(t, "cancel what has ended", l.cancelVerify(v, 0), codeClosed)
		return err
	}
	want(t, "verify", verify(at), codeOK)
	want(t, "verify what is not there", verify(filepath.Join(dir, "none")), codeNotFound)
	want(t, "verify what is none", verify(t.TempDir()), codeNotFound)
	if err := os.WriteFile(filepath.Join(at, checkpoint.ManifestName), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	err = verify(at)
	if want(t, "verify a damaged one", err, codeFormat); !strings.Contains(err.Error(), checkpoint.ManifestName) {
		t.Error(err)
	}
	v, err := l.beginVerify(at, 0)
	want(t, "begin verifying", err, codeOK)
	want(t, "cancel it", l.cancelVerify(v, -1), codeOK)

	want(t, "remove", removeCheckpoint(at), codeOK)
	want(t, "remove again", removeCheckpoint(at), codeNotFound)
	if err := os.Mkdir(filepath.Join(dir, ".step_4.hbmfs.tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	removed, err := clean(dir)
	if want(t, "clean", err, codeOK); removed != filepath.Join(dir, ".step_4.hbmfs.tmp")+"\x00" {
		t.Errorf("%q was removed", removed)
	}
}
