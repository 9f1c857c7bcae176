"""What happens beside the steps of a training, a file each: saving, stopping, telling, drawing."""
