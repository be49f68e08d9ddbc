package training_test

import (
	"testing"

	"github.com/hbmfs/hbmfs/tests/suites/python/themes"
)

func TestTrainingPeers(t *testing.T) { themes.RunPeers(t, "training") }
